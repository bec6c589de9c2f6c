/* Data pages of a Parquet column of bytes, inflated, whose values are taken without decoding the column:
 * https://parquet.apache.org/docs/file-format/data-pages/
 *
 * A page (V1, of a flat column that may be null, PLAIN) has the size of the levels in 4 bytes; the levels, 1 for a value
 * and 0 for null, in runs; and each value after its length in 4 bytes, little-endian. plain_pages.py calls this and owns
 * all memory.
 *
 * Invariants: nothing is read outside of a page, and nothing is written outside of the sizes that a function states,
 * whatever the bytes are. A page that is not exactly so is not taken.
 */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { LENGTH = 4 };

/* The CRC-32 of this file as it was compiled: a library that was made from another file is not used. */
EXPORT int64_t source_crc(void) { return SOURCE_CRC; }

static inline uint32_t read_length(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline void write_length(uint8_t *p, uint32_t length) {
    for (int i = 0; i < LENGTH; i++) p[i] = (uint8_t)(length >> 8 * i);
}

/* A varint of at most 32 bits, not zigzag; 0 if it is cut or longer. */
static int read_varint(const uint8_t **at, const uint8_t *end, uint32_t *value) {
    uint64_t raw = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        if (*at >= end) return 0;
        uint8_t byte = *(*at)++;
        raw |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *value = (uint32_t)raw;
            return raw <= UINT32_MAX;
        }
    }
    return 0;
}

/* Levels of one bit, in runs: a run of one level, or of eight levels a byte. Fill the validity of `rows` values; returns
 * how many are null, or -1 if the levels are fewer. */
static int64_t read_levels(const uint8_t *p, const uint8_t *end, int64_t rows, uint8_t *valid) {
    int64_t row = 0, values = 0;
    memset(valid, 0, (size_t)((rows + 7) / 8));
    while (row < rows) {
        uint32_t run;
        if (!read_varint(&p, end, &run) || p >= end) return -1;
        int packed = run & 1;
        int64_t count = (int64_t)(run >> 1) * (packed ? 8 : 1);
        if (count == 0 || (packed ? count / 8 > end - p : *p > 1)) return -1;
        for (int64_t i = 0; i < count && row < rows; i++, row++)
            if (packed ? p[i >> 3] >> (i & 7) & 1 : *p) {
                valid[row >> 3] |= (uint8_t)(1 << (row & 7));
                values++;
            }
        p += packed ? count / 8 : 1;
    }
    return rows - values;
}

/* Find the values of a page of at most 2^31 - 1 bytes: value i is at offsets[i] + 4 and ends at offsets[i + 1], as in
 * record_codec.c; a null has no bytes. Fills (rows + 7) / 8 bytes of valid and rows + 1 offsets. Returns how many values
 * are null, or -1 if the page does not have exactly `rows` values. */
EXPORT int64_t index_page(const uint8_t *page, int64_t size, int64_t rows, uint8_t *valid, int32_t *offsets) {
    if (size < LENGTH || read_length(page) > size - LENGTH) return -1;
    int64_t at = LENGTH + (int64_t)read_length(page);
    int64_t nulls = read_levels(page + LENGTH, page + at, rows, valid);
    if (nulls < 0) return -1;
    for (int64_t row = 0; row < rows; row++) {
        offsets[row] = (int32_t)at;
        if (nulls && !(valid[row >> 3] >> (row & 7) & 1)) continue;
        if (size - at < LENGTH) return -1;
        int64_t length = read_length(page + at);
        if (length > size - at - LENGTH) return -1;
        at += LENGTH + length;
    }
    offsets[rows] = (int32_t)at;
    return at == size ? nulls : -1;
}

/* Write the kept rows of a page that index_page has read as a page of their own; kept has a byte for each row. Returns the
 * size of that page, which out must have; nothing is written if out is NULL. */
EXPORT int64_t copy_page(const uint8_t *page, int64_t rows, const uint8_t *valid, const int32_t *offsets,
                         const uint8_t *kept, uint8_t *out) {
    int64_t count = 0, values = 0;
    for (int64_t row = 0; row < rows; row++)
        if (kept[row]) {
            count++;
            values += offsets[row + 1] - offsets[row];
        }
    uint8_t run[10]; /* all levels in one run of eight a byte */
    int64_t run_size = 0, bytes = (count + 7) / 8;
    for (uint64_t left = (uint64_t)bytes << 1 | 1; left; left >>= 7)
        run[run_size++] = (uint8_t)(left < 128 ? left : left | 128);
    int64_t levels = run_size + bytes;
    if (out == NULL) return LENGTH + levels + values;
    write_length(out, (uint32_t)levels);
    uint8_t *p = out + LENGTH;
    memcpy(p, run, (size_t)run_size);
    p += run_size;
    memset(p, 0, (size_t)bytes);
    for (int64_t row = 0, to = 0; row < rows; row++) {
        if (!kept[row]) continue;
        p[to >> 3] |= (uint8_t)((valid[row >> 3] >> (row & 7) & 1) << (to & 7));
        to++;
    }
    p += bytes;
    for (int64_t row = 0; row < rows;) {
        if (!kept[row]) {
            row++;
            continue;
        }
        int64_t first = row;
        while (row < rows && kept[row]) row++;
        size_t length = (size_t)(offsets[row] - offsets[first]);
        memcpy(p, page + offsets[first], length);
        p += length;
    }
    return p - out;
}
