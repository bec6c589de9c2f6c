/* The records of Kafka record batches (magic 2), inflated, to columns and back: https://kafka.apache.org/documentation/#record
 *
 * Plain C11 without Python's headers, so that one library serves every Python; native.py calls it and owns all memory.
 * Each structure here has its twin there. All numbers of the structures are 64 bits wide, also the addresses.
 *
 * Invariants: nothing is read outside of [data, data + size) of a batch, and nothing is written outside of the sizes that
 * the caller gives, whatever the bytes are. numpy_codec.py takes and refuses the same bytes.
 */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* The CRC-32 of this file as it was compiled: a library that was made from another file is not used. */
EXPORT int64_t source_crc(void) { return SOURCE_CRC; }

/* ---- what a batch may have wrong: faults.py has the words ---------------------------------------------------------- */

enum fault {
    NO_FAULT,
    RECORD_LENGTH,
    TIMESTAMP_DELTA,
    OFFSET_DELTA,
    OFFSET_DELTA_VALUE,
    KEY_LENGTH,
    VALUE_LENGTH,
    HEADER_COUNT,
    HEADER_KEY_LENGTH,
    HEADER_KEY_TEXT,
    HEADER_VALUE_LENGTH,
    RECORD_REST,
    BATCH_REST,
    TIMESTAMP_VALUE,
    TOO_MANY_HEADERS,
};

/* ---- structures that native.py fills ------------------------------------------------------------------------------ */

/* The records of one batch. With log_append_time each has the time append_time, and its own is not looked at. */
struct batch {
    const uint8_t *data;
    int64_t size, count, base_timestamp, log_append_time, append_time;
};

struct rules {
    int64_t contiguous; /* the offset delta of record i is i; otherwise they rise */
    int64_t timestamp_max, headers_max;
};

/* What the records of one batch are; with a fault, of which record. */
struct found {
    int64_t fault, record;
    int64_t key_bytes, value_bytes, header_count, header_key_bytes, header_value_bytes;
    int64_t null_keys, first_null_key, null_values, null_header_values, bare; /* bare: without headers */
    int64_t untimed, max_timestamp, last_offset_delta;
};

/* A column of bytes in Arrow's layout. valid is NULL where nothing is null. */
struct target {
    uint8_t *valid;
    int32_t *offsets;
    uint8_t *data;
    int64_t size;
};

/* The columns of `rows` records with `headers` headers together. list_offsets is NULL where no record has headers. */
struct columns {
    int64_t rows, headers;
    int64_t *timestamps;
    uint8_t *timestamps_valid;
    int32_t *offset_deltas;
    struct target key, value;
    uint8_t *list_valid;
    int32_t *list_offsets;
    struct target header_key, header_value;
};

/* A column to encode. Bit `bit` of valid is of the first row, as is offsets[0]. `prefix` bytes before each value are not
 * its own: none in Arrow's layout, 4 in a page of Parquet (plain_pages.c). */
struct source {
    const uint8_t *valid;
    int64_t bit;
    const int32_t *offsets;
    const uint8_t *data;
    int64_t prefix;
};

struct records {
    int64_t rows, base_offset, base_timestamp;
    const int64_t *offsets, *timestamps;
    const uint8_t *kept; /* a byte for each row: 0 leaves it out. NULL where none is left out */
    struct source key, value, list, header_key, header_value; /* list.offsets is NULL where no record has headers */
};

/* ---- numbers ------------------------------------------------------------------------------------------------------ */

/* A zigzag varint of at most `bits` bits; 0 if it is cut or longer. */
static inline int read_varint(const uint8_t **at, const uint8_t *end, int bits, int64_t *value) {
    const uint8_t *p = *at;
    uint64_t raw = 0;
    if (p < end && *p < 128) {
        raw = *p++;
    } else {
        for (int shift = 0;; shift += 7) {
            if (p >= end || shift >= bits) return 0;
            uint64_t byte = *p++;
            if (bits - shift < 7 && (byte & 127) >> (bits - shift)) return 0;
            raw |= (byte & 127) << shift;
            if (byte < 128) break;
        }
    }
    *at = p;
    *value = (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
    return 1;
}

/* A length and as many bytes; -1 is null. */
static inline int read_bytes(const uint8_t **at, const uint8_t *end, const uint8_t **data, int64_t *length) {
    if (!read_varint(at, end, 32, length) || *length < -1 || *length > end - *at) return 0;
    *data = *at;
    if (*length > 0) *at += *length;
    return 1;
}

static inline uint64_t zigzag(int64_t value) { return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63); }

/* Seven bits a byte, rounded up; 0 has one bit here. */
static inline int64_t varint_size(int64_t value) { return (70 - __builtin_clzll(zigzag(value) | 1)) / 7; }

static inline uint8_t *write_varint(uint8_t *p, int64_t value) {
    uint64_t raw = zigzag(value);
    for (; raw >= 128; raw >>= 7) *p++ = (uint8_t)(raw | 128);
    *p++ = (uint8_t)raw;
    return p;
}

static inline int is_set(const uint8_t *bits, int64_t at) { return bits == NULL || (bits[at >> 3] >> (at & 7) & 1); }

static inline void set(uint8_t *bits, int64_t at) {
    if (bits != NULL) bits[at >> 3] |= (uint8_t)(1 << (at & 7));
}

/* RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
static int is_utf8(const uint8_t *p, int64_t length) {
    for (const uint8_t *end = p + length; p < end;) {
        uint8_t first = *p++, low = 0x80, high = 0xBF;
        if (first < 0x80) continue;
        int more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
        if (first < 0xC2 || first > 0xF4 || end - p < more) return 0;
        if (first == 0xE0) low = 0xA0;
        if (first == 0xED) high = 0x9F;
        if (first == 0xF0) low = 0x90;
        if (first == 0xF4) high = 0x8F;
        for (; more; more--, p++, low = 0x80, high = 0xBF)
            if (*p < low || *p > high) return 0;
    }
    return 1;
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

struct record {
    int64_t timestamp, offset_delta, header_count;
    const uint8_t *key, *value, *headers, *end;
    int64_t key_length, value_length;
};

/* The record at *at up to its headers; all its numbers are within their bounds then. */
static inline enum fault read_record(const uint8_t **at, const struct batch *batch, const struct rules *rules,
                                     int64_t number, int64_t previous, struct record *record) {
    const uint8_t *p = *at, *end = batch->data + batch->size;
    int64_t length, delta;
    if (!read_varint(&p, end, 32, &length) || length < 1 || length > end - p) return RECORD_LENGTH;
    end = record->end = p + length;
    p++; /* attributes, unused */
    if (!read_varint(&p, end, 64, &delta)) return TIMESTAMP_DELTA;
    if (batch->log_append_time) {
        record->timestamp = batch->append_time;
    } else {
        if (__builtin_add_overflow(batch->base_timestamp, delta, &record->timestamp)) return TIMESTAMP_VALUE;
        if (record->timestamp < -1 || record->timestamp > rules->timestamp_max) return TIMESTAMP_VALUE;
    }
    if (!read_varint(&p, end, 32, &record->offset_delta)) return OFFSET_DELTA;
    if (rules->contiguous ? record->offset_delta != number : record->offset_delta <= previous)
        return OFFSET_DELTA_VALUE;
    if (!read_bytes(&p, end, &record->key, &record->key_length)) return KEY_LENGTH;
    if (!read_bytes(&p, end, &record->value, &record->value_length)) return VALUE_LENGTH;
    if (!read_varint(&p, end, 32, &record->header_count) || record->header_count < 0) return HEADER_COUNT;
    if (record->header_count > rules->headers_max) return TOO_MANY_HEADERS;
    record->headers = p;
    if (record->header_count == 0 && p != end) return RECORD_REST;
    *at = end;
    return NO_FAULT;
}

struct header {
    const uint8_t *key, *value;
    int64_t key_length, value_length;
};

static inline enum fault read_header(const uint8_t **at, const uint8_t *end, struct header *header) {
    if (!read_bytes(at, end, &header->key, &header->key_length) || header->key_length < 0) return HEADER_KEY_LENGTH;
    if (!read_bytes(at, end, &header->value, &header->value_length)) return HEADER_VALUE_LENGTH;
    return NO_FAULT;
}

static enum fault scan_headers(const struct record *record, struct found *found) {
    const uint8_t *p = record->headers;
    struct header header;
    for (int64_t i = 0; i < record->header_count; i++) {
        enum fault fault = read_header(&p, record->end, &header);
        if (fault) return fault;
        if (!is_utf8(header.key, header.key_length)) return HEADER_KEY_TEXT;
        found->header_key_bytes += header.key_length;
        if (header.value_length < 0)
            found->null_header_values++;
        else
            found->header_value_bytes += header.value_length;
    }
    found->header_count += record->header_count;
    return p == record->end ? NO_FAULT : RECORD_REST;
}

static enum fault scan_records(const struct batch *batch, const struct rules *rules, struct found *found) {
    const uint8_t *p = batch->data;
    int64_t previous = -1;
    struct record record;
    for (int64_t i = 0; i < batch->count; i++) {
        found->record = i;
        enum fault fault = read_record(&p, batch, rules, i, previous, &record);
        if (!fault && record.header_count) fault = scan_headers(&record, found);
        if (fault) return fault;
        previous = record.offset_delta;
        if (!record.header_count) found->bare++;
        if (record.key_length < 0) {
            if (!found->null_keys++) found->first_null_key = i;
        } else {
            found->key_bytes += record.key_length;
        }
        if (record.value_length < 0)
            found->null_values++;
        else
            found->value_bytes += record.value_length;
        if (record.timestamp == -1)
            found->untimed++;
        else if (record.timestamp > found->max_timestamp)
            found->max_timestamp = record.timestamp;
    }
    found->last_offset_delta = previous;
    return p == batch->data + batch->size ? NO_FAULT : BATCH_REST;
}

/* Fill `found` for each batch. Returns how many batches have no fault before the first that has one. */
EXPORT int64_t scan(const struct batch *batches, int64_t count, const struct rules *rules, struct found *found) {
    for (int64_t i = 0; i < count; i++) {
        memset(&found[i], 0, sizeof found[i]);
        found[i].max_timestamp = found[i].first_null_key = -1;
        found[i].fault = scan_records(&batches[i], rules, &found[i]);
        if (found[i].fault) return i;
    }
    return count;
}

/* Append `length` bytes, or null for -1, as value `row` of the column; 0 if they do not fit. */
static inline int append(struct target *target, int64_t row, const uint8_t *data, int64_t length) {
    int64_t end = target->offsets[row];
    if (length > 0) {
        if (length > target->size - end) return 0;
        memcpy(target->data + end, data, (size_t)length);
        end += length;
    }
    if (length >= 0) set(target->valid, row);
    target->offsets[row + 1] = (int32_t)end;
    return 1;
}

static void begin(struct target *target, int64_t rows) {
    target->offsets[0] = 0;
    if (target->valid != NULL) memset(target->valid, 0, (size_t)((rows + 7) / 8));
}

static int decode_headers(const struct record *record, struct columns *columns, int64_t *headers) {
    const uint8_t *p = record->headers;
    struct header header;
    if (record->header_count > columns->headers - *headers) return 0;
    for (int64_t i = 0; i < record->header_count; i++, ++*headers)
        if (read_header(&p, record->end, &header) ||
            !append(&columns->header_key, *headers, header.key, header.key_length) ||
            !append(&columns->header_value, *headers, header.value, header.value_length))
            return 0;
    return 1;
}

/* Fill `columns` with the records of all batches. Returns 1; 0 if they do not fit the sizes, which a scan has found. */
EXPORT int64_t decode(const struct batch *batches, int64_t count, const struct rules *rules, struct columns *columns) {
    int64_t row = 0, headers = 0;
    struct record record;
    begin(&columns->key, columns->rows);
    begin(&columns->value, columns->rows);
    if (columns->timestamps_valid != NULL) memset(columns->timestamps_valid, 0, (size_t)((columns->rows + 7) / 8));
    if (columns->list_offsets != NULL) {
        begin(&columns->header_key, columns->headers);
        begin(&columns->header_value, columns->headers);
        columns->list_offsets[0] = 0;
        if (columns->list_valid != NULL) memset(columns->list_valid, 0, (size_t)((columns->rows + 7) / 8));
    }
    for (const struct batch *batch = batches; batch < batches + count; batch++) {
        const uint8_t *p = batch->data;
        int64_t previous = -1;
        if (batch->count > columns->rows - row) return 0;
        for (int64_t i = 0; i < batch->count; i++, row++) {
            if (read_record(&p, batch, rules, i, previous, &record)) return 0;
            previous = record.offset_delta;
            columns->timestamps[row] = record.timestamp;
            if (record.timestamp != -1) set(columns->timestamps_valid, row);
            columns->offset_deltas[row] = (int32_t)record.offset_delta;
            if (!append(&columns->key, row, record.key, record.key_length) ||
                !append(&columns->value, row, record.value, record.value_length))
                return 0;
            if (columns->list_offsets != NULL) {
                if (!decode_headers(&record, columns, &headers)) return 0;
                if (record.header_count) set(columns->list_valid, row);
                columns->list_offsets[row + 1] = (int32_t)headers;
            } else if (record.header_count) {
                return 0;
            }
        }
    }
    return row == columns->rows && headers == columns->headers;
}

/* ---- writing ------------------------------------------------------------------------------------------------------ */

static inline int64_t length_of(const struct source *source, int64_t row) {
    if (!is_set(source->valid, source->bit + row)) return -1;
    return (int64_t)source->offsets[row + 1] - source->offsets[row] - source->prefix;
}

static inline int64_t bytes_size(int64_t length) { return varint_size(length) + (length > 0 ? length : 0); }

static inline uint8_t *write_bytes(uint8_t *p, const struct source *source, int64_t row, int64_t length) {
    p = write_varint(p, length);
    if (length > 0) {
        memcpy(p, source->data + source->offsets[row] + source->prefix, (size_t)length);
        p += length;
    }
    return p;
}

/* The first header of a record, and the end of its headers. */
static inline void headers_of(const struct records *records, int64_t row, int64_t *first, int64_t *end) {
    *first = *end = 0;
    if (records->list.offsets != NULL && is_set(records->list.valid, records->list.bit + row)) {
        *first = records->list.offsets[row];
        *end = records->list.offsets[row + 1];
    }
}

/* A header's key cannot be null; a null of another writer's table is written as an empty text. */
static inline int64_t header_key_length(const struct records *records, int64_t header) {
    int64_t length = length_of(&records->header_key, header);
    return length < 0 ? 0 : length;
}

/* Bytes of a record behind its length. */
static int64_t record_size(const struct records *records, int64_t row) {
    int64_t first, end;
    headers_of(records, row, &first, &end);
    int64_t size = 1 + varint_size(records->timestamps[row] - records->base_timestamp) +
                   varint_size(records->offsets[row] - records->base_offset) +
                   bytes_size(length_of(&records->key, row)) + bytes_size(length_of(&records->value, row)) +
                   varint_size(end - first);
    for (int64_t header = first; header < end; header++)
        size += bytes_size(header_key_length(records, header)) + bytes_size(length_of(&records->header_value, header));
    return size;
}

static inline int is_kept(const struct records *records, int64_t row) {
    return records->kept == NULL || records->kept[row];
}

/* Bytes of the kept records, encoded. */
EXPORT int64_t encoded_size(const struct records *records) {
    int64_t total = 0;
    for (int64_t row = 0; row < records->rows; row++) {
        if (!is_kept(records, row)) continue;
        int64_t size = record_size(records, row);
        total += varint_size(size) + size;
    }
    return total;
}

/* Write the kept records to out, up to the first that does not fit. Returns their bytes; *done, unless it is NULL, is how many
 * rows these are, with those left out. */
EXPORT int64_t encode(const struct records *records, uint8_t *out, int64_t size, int64_t *done) {
    uint8_t *p = out, *end_of_out = out + size;
    int64_t row = 0;
    for (; row < records->rows; row++) {
        if (!is_kept(records, row)) continue;
        int64_t first, end, bytes = record_size(records, row);
        if (varint_size(bytes) + bytes > end_of_out - p) break;
        headers_of(records, row, &first, &end);
        p = write_varint(p, bytes);
        *p++ = 0; /* attributes */
        p = write_varint(p, records->timestamps[row] - records->base_timestamp);
        p = write_varint(p, records->offsets[row] - records->base_offset);
        p = write_bytes(p, &records->key, row, length_of(&records->key, row));
        p = write_bytes(p, &records->value, row, length_of(&records->value, row));
        p = write_varint(p, end - first);
        for (int64_t header = first; header < end; header++) {
            p = write_bytes(p, &records->header_key, header, header_key_length(records, header));
            p = write_bytes(p, &records->header_value, header, length_of(&records->header_value, header));
        }
    }
    if (done != NULL) *done = row;
    return p - out;
}
