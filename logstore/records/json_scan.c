/* Produce requests in JSON, {"records":[{"key":..,"value":..,"partition":..,"timestamp":..,"headers":[..]}]}, to columns;
 * Kafka's hash of keys, and the text of an answer with offsets.
 *
 * Plain C11 without Python's headers, so that one library serves every Python; native.py calls it and owns all memory.
 * Each structure here has its twin there. All numbers of the structures are 64 bits wide, also the addresses.
 *
 * Invariants: nothing is read outside of [data, data + size), and nothing is written outside of the rooms that the caller
 * gives, whatever the bytes are. What is taken here, json_decoder.py takes with the same result. Everything else is
 * NOT_PLAIN and goes to json_decoder.py, which has the words for what is wrong; so nothing is refused here. Left to it
 * are also: escapes in names, in base64 and in keys that are stored as texts; the schema fields; fields that are there
 * twice; nesting over DEPTH_MAX; partitions and timestamps with a fraction or an exponent.
 */
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define EXPORT __attribute__((visibility("default")))
#define DEPTH_MAX 512

/* The CRC-32 of this file as it was compiled: a library that was made from another file is not used. */
EXPORT int64_t source_crc(void) { return SOURCE_CRC; }

/* Results of a scan other than the number of its rows. */
enum { NOT_PLAIN = -1, MORE_ROWS = -2, MORE_HEADERS = -3 };

/* ---- structures that native.py fills ------------------------------------------------------------------------------ */

/* `documents` requests stand one behind the other. A record may name a partition from partition_first up to, not
 * including, partition_end. */
struct rules {
    int64_t documents, rows, headers; /* how many fit into the room of `spans` */
    int64_t string_keys, partition_first, partition_end, timestamp_max, headers_max;
};

/* Where the fields of each record are in the data; a length of -1 is null, as are a partition and a timestamp of -1.
 * header_end counts the headers up to and with this record. listed is 0 where the list of headers is null. The value of a
 * header is its text in base64. */
struct spans {
    int64_t *timestamp;
    int32_t *key_at, *key_length, *value_at, *value_length, *partition, *header_end;
    int32_t *header_key_at, *header_key_length, *header_value_at, *header_value_length;
    uint8_t *listed;
};

/* What the records are together; `largest` has the most bytes of key, value and headers. */
struct found {
    int64_t rows, headers, key_bytes, value_bytes, header_key_bytes, header_value_bytes;
    int64_t null_keys, null_values, null_header_values, bare, timed, named, largest;
};

/* A column of bytes in Arrow's layout. valid is NULL where nothing is null. */
struct target {
    uint8_t *valid;
    int32_t *offsets;
    uint8_t *data;
    int64_t size;
};

/* timestamps is NULL where no record has one, list_offsets where no record has headers. */
struct columns {
    int64_t rows, headers;
    struct target key, value;
    int64_t *timestamps;
    uint8_t *timestamps_valid;
    uint8_t *list_valid;
    int32_t *list_offsets;
    struct target header_key, header_value;
};

/* ---- JSON (RFC 8259): each function returns the place behind what it has read, NULL if it is wrong ------------------ */

static inline const uint8_t *skip_blank(const uint8_t *p, const uint8_t *end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

/* Behind the character `c`, which blanks may precede. */
static inline const uint8_t *skip(const uint8_t *p, const uint8_t *end, uint8_t c) {
    p = skip_blank(p, end);
    return p < end && *p == c ? p + 1 : NULL;
}

static inline int is_digit(const uint8_t *p, const uint8_t *end) { return p < end && (uint8_t)(*p - '0') < 10; }

/* Characters that are not ASCII, as RFC 3629 has them: no overlong forms, no surrogates, nothing above U+10FFFF. */
static inline const uint8_t *skip_characters(const uint8_t *p, const uint8_t *end) {
    while (p < end && *p >= 0x80) {
        uint8_t first = *p++, low = 0x80, high = 0xBF;
        int more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
        if (first < 0xC2 || first > 0xF4 || end - p < more) return NULL;
        if (first == 0xE0) low = 0xA0;
        if (first == 0xED) high = 0x9F;
        if (first == 0xF0) low = 0x90;
        if (first == 0xF4) high = 0x8F;
        if (*p < low || *p++ > high) return NULL;
        for (; more > 1; more--)
            if ((*p++ & 0xC0) != 0x80) return NULL;
    }
    return p;
}

/* The value of the four hexadecimal digits at p, or -1. */
static inline int32_t hex4(const uint8_t *p) {
    int32_t value = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = p[i], letter = c | 0x20;
        if (c >= '0' && c <= '9')
            value = value << 4 | (c - '0');
        else if (letter >= 'a' && letter <= 'f')
            value = value << 4 | (letter - 'a' + 10);
        else
            return -1;
    }
    return value;
}

/* The escape whose backslash is at p. A lone surrogate is left to json_decoder.py. */
static const uint8_t *skip_escape(const uint8_t *p, const uint8_t *end) {
    if (end - p < 2) return NULL;
    if (p[1] != 'u') return p[1] != 0 && strchr("\"\\/bfnrt", p[1]) != NULL ? p + 2 : NULL;
    int32_t unit = end - p < 6 ? -1 : hex4(p + 2);
    if (unit < 0 || (unit >= 0xDC00 && unit <= 0xDFFF)) return NULL;
    if (unit < 0xD800 || unit > 0xDFFF) return p + 6;
    int32_t low = end - p < 12 || p[6] != '\\' || p[7] != 'u' ? -1 : hex4(p + 8);
    return low >= 0xDC00 && low <= 0xDFFF ? p + 12 : NULL;
}

/* The first byte from p on that is a quote, a backslash, a control or not ASCII; `end` without one. */
static inline const uint8_t *find_special(const uint8_t *p, const uint8_t *end) {
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\'), space = _mm_set1_epi8(' ');
    for (; end - p >= 16; p += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)p);
        /* Signed: below a space are the controls, and all that is not ASCII. */
        __m128i hits = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash)),
                                    _mm_cmplt_epi8(bytes, space));
        int mask = _mm_movemask_epi8(hits);
        if (mask) return p + __builtin_ctz((unsigned)mask);
    }
#else
    const uint64_t ones = 0x0101010101010101u, tops = 0x8080808080808080u;
    for (; end - p >= 8; p += 8) {
        uint64_t bytes;
        memcpy(&bytes, p, 8);
        uint64_t quotes = bytes ^ ones * '"', backslashes = bytes ^ ones * '\\';
        if (((bytes - ones * ' ') | bytes | (quotes - ones) | (backslashes - ones)) & tops) break;
    }
#endif
    while (p < end && *p != '"' && *p != '\\' && *p >= ' ' && *p < 0x80) p++;
    return p;
}

/* The string whose quote is at p. */
static inline const uint8_t *skip_string(const uint8_t *p, const uint8_t *end, int *has_escapes) {
    *has_escapes = 0;
    for (p++;;) {
        p = find_special(p, end);
        if (p >= end) return NULL;
        if (*p == '"') return p + 1;
        if (*p == '\\') {
            *has_escapes = 1;
            p = skip_escape(p, end);
        } else if (*p < ' ') {
            return NULL;
        } else {
            p = skip_characters(p, end);
        }
        if (p == NULL) return NULL;
    }
}

static inline const uint8_t *skip_digits(const uint8_t *p, const uint8_t *end) {
    if (!is_digit(p, end)) return NULL;
    while (is_digit(p, end)) p++;
    return p;
}

static inline const uint8_t *skip_number(const uint8_t *p, const uint8_t *end) {
    if (*p == '-') p++;
    if (p < end && *p == '0')
        p++;
    else if ((p = skip_digits(p, end)) == NULL)
        return NULL;
    if (p < end && *p == '.' && (p = skip_digits(p + 1, end)) == NULL) return NULL;
    if (p < end && (*p | 0x20) == 'e') {
        p++;
        if (p < end && (*p == '+' || *p == '-')) p++;
        return skip_digits(p, end);
    }
    return p;
}

static inline const uint8_t *skip_word(const uint8_t *p, const uint8_t *end, const char *word, int length) {
    return end - p >= length && !memcmp(p, word, (size_t)length) ? p + length : NULL;
}

static inline const uint8_t *skip_null(const uint8_t *p, const uint8_t *end) { return skip_word(p, end, "null", 4); }

/* The name of a field and its colon, up to its value. */
static inline const uint8_t *skip_name(const uint8_t *p, const uint8_t *end) {
    int has_escapes;
    if (p >= end || *p != '"' || (p = skip_string(p, end, &has_escapes)) == NULL) return NULL;
    p = skip(p, end, ':');
    return p == NULL ? NULL : skip_blank(p, end);
}

/* The value of any kind at p. *has_escapes is set for a string. */
static const uint8_t *skip_value(const uint8_t *p, const uint8_t *end, int *has_escapes) {
    uint64_t objects[DEPTH_MAX / 64]; /* a bit for each level: 1 in an object, 0 in an array */
    int depth = 0, inner;
    for (;;) {
        if (p >= end) return NULL;
        switch (*p) {
        case '"':
            p = skip_string(p, end, depth ? &inner : has_escapes);
            break;
        case '{':
        case '[': {
            int is_object = *p == '{';
            if (depth == DEPTH_MAX) return NULL;
            p = skip_blank(p + 1, end);
            if (p < end && *p == (is_object ? '}' : ']')) {
                p++;
                break;
            }
            uint64_t bit = (uint64_t)1 << (depth & 63);
            objects[depth >> 6] = is_object ? objects[depth >> 6] | bit : objects[depth >> 6] & ~bit;
            depth++;
            if (is_object && (p = skip_name(p, end)) == NULL) return NULL;
            continue;
        }
        case 't':
            p = skip_word(p, end, "true", 4);
            break;
        case 'f':
            p = skip_word(p, end, "false", 5);
            break;
        case 'n':
            p = skip_null(p, end);
            break;
        default:
            p = skip_number(p, end);
        }
        if (p == NULL) return NULL;
        for (;;) { /* what follows a value */
            if (!depth) return p;
            int is_object = objects[(depth - 1) >> 6] >> ((depth - 1) & 63) & 1;
            p = skip_blank(p, end);
            if (p >= end) return NULL;
            if (*p == ',') {
                p = skip_blank(p + 1, end);
                if (is_object && (p = skip_name(p, end)) == NULL) return NULL;
                break;
            }
            if (*p != (is_object ? '}' : ']')) return NULL;
            p++;
            depth--;
        }
    }
}

/* An integer from `first` up to, not including, `limit`, or null (-1). */
static const uint8_t *read_integer(const uint8_t *p, const uint8_t *end, int64_t first, int64_t limit, int64_t *value) {
    *value = -1;
    if (p < end && *p == 'n') return skip_null(p, end);
    const uint8_t *begin = p;
    int64_t number = 0;
    for (; is_digit(p, end); p++) {
        if (number > (INT64_MAX - 9) / 10) return NULL;
        number = 10 * number + (*p - '0');
    }
    if (p == begin || (*begin == '0' && p - begin > 1) || number < first || number >= limit) return NULL;
    if (p < end && (*p == '.' || (*p | 0x20) == 'e')) return NULL;
    *value = number;
    return p;
}

/* ---- base64 (RFC 4648, section 4) --------------------------------------------------------------------------------- */

/* The six bits that a letter stands for, or -1. */
static inline int bits_of(uint8_t c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* The number of bytes, which are written to `out` unless it is NULL; -1 for a text that no encoder writes. */
static int64_t decode_base64(const uint8_t *p, int64_t length, uint8_t *out) {
    int64_t size = 0;
    if (length & 3) return -1;
    for (int64_t i = 0; i < length; i += 4) {
        int count = 3, a = bits_of(p[i]), b = bits_of(p[i + 1]), c = bits_of(p[i + 2]), d = bits_of(p[i + 3]);
        if (i + 4 == length && p[i + 3] == '=') {
            count = p[i + 2] == '=' ? 1 : 2;
            d = 0;
            if (count == 1) c = 0;
        }
        if ((a | b | c | d) < 0 || (count == 1 && b & 15) || (count == 2 && c & 3)) return -1;
        uint32_t bytes = (uint32_t)(a << 18 | b << 12 | c << 6 | d);
        for (int at = 0; out != NULL && at < count; at++) out[size + at] = (uint8_t)(bytes >> (16 - 8 * at));
        size += count;
    }
    return size;
}

/* ---- requests ----------------------------------------------------------------------------------------------------- */

enum field { NO_FIELD, KEY = 1, VALUE = 2, PARTITION = 4, TIMESTAMP = 8, HEADERS = 16 };

static const struct {
    enum field field;
    int length;
    char name[12];
} FIELDS[] = {
    {KEY, 4, "key\""}, {VALUE, 6, "value\""}, {PARTITION, 10, "partition\""}, {TIMESTAMP, 10, "timestamp\""}, {HEADERS, 8, "headers\""},
};

/* The field whose name begins behind the quote at *at, one of `allowed`, and moves to its value; NO_FIELD for others. */
static inline enum field read_field(const uint8_t **at, const uint8_t *end, int allowed) {
    const uint8_t *p = skip(*at, end, '"');
    for (size_t i = 0; p != NULL && i < sizeof FIELDS / sizeof *FIELDS; i++) {
        const uint8_t *behind = FIELDS[i].field & allowed ? skip_word(p, end, FIELDS[i].name, FIELDS[i].length) : NULL;
        if (behind == NULL) continue;
        behind = skip(behind, end, ':');
        if (behind == NULL) return NO_FIELD;
        *at = skip_blank(behind, end);
        return FIELDS[i].field;
    }
    return NO_FIELD;
}

struct scan {
    const uint8_t *data, *end;
    const struct rules *rules;
    struct spans *spans;
    struct found *found;
};

/* Whether another element follows; moves behind the comma, or behind `close` at the end. -1 for anything else. */
static inline int has_more(const uint8_t **at, const uint8_t *end, uint8_t close) {
    const uint8_t *p = skip_blank(*at, end);
    if (p >= end || (*p != ',' && *p != close)) return -1;
    *at = p + 1;
    return *p == ',';
}

/* The header at *at. Returns 0, or a result of a scan. */
static int scan_header(const struct scan *scan, const uint8_t **at, int64_t *bytes) {
    const uint8_t *p = skip(*at, scan->end, '{'), *behind;
    struct spans *s = scan->spans;
    int allowed = KEY | VALUE, has_escapes, more;
    if (scan->found->headers == scan->rules->headers) return MORE_HEADERS;
    int64_t header = scan->found->headers++, length = 0;
    s->header_value_at[header] = 0;
    s->header_value_length[header] = -1;
    if (p == NULL) return NOT_PLAIN;
    do {
        enum field field = read_field(&p, scan->end, allowed);
        if (field == NO_FIELD) return NOT_PLAIN;
        allowed &= ~field;
        if (field == VALUE && p < scan->end && *p == 'n') {
            behind = skip_null(p, scan->end);
        } else {
            if (p >= scan->end || *p != '"') return NOT_PLAIN;
            behind = skip_string(p, scan->end, &has_escapes);
            if (behind == NULL || has_escapes) return NOT_PLAIN;
            int32_t from = (int32_t)(p + 1 - scan->data);
            length = behind - p - 2;
            if (field == KEY) {
                s->header_key_at[header] = from;
                s->header_key_length[header] = (int32_t)length;
                scan->found->header_key_bytes += length;
            } else {
                s->header_value_at[header] = from;
                s->header_value_length[header] = (int32_t)length;
                length = decode_base64(p + 1, length, NULL);
                if (length < 0) return NOT_PLAIN;
                scan->found->header_value_bytes += length;
            }
            *bytes += length;
        }
        if (behind == NULL) return NOT_PLAIN;
        p = behind;
        more = has_more(&p, scan->end, '}');
    } while (more > 0);
    if (more < 0 || allowed & KEY) return NOT_PLAIN;
    if (s->header_value_length[header] < 0) scan->found->null_header_values++;
    *at = p;
    return 0;
}

/* The headers at *at, null or a list. Returns 0, or a result of a scan. */
static int scan_headers(const struct scan *scan, const uint8_t **at, int64_t row, int64_t *bytes) {
    const uint8_t *p = *at;
    int64_t first = scan->found->headers;
    int result, more = 1;
    if (p < scan->end && *p == 'n') {
        *at = skip_null(p, scan->end);
        return *at == NULL ? NOT_PLAIN : 0;
    }
    if (p >= scan->end || *p != '[') return NOT_PLAIN;
    scan->spans->listed[row] = 1;
    p = skip_blank(p + 1, scan->end);
    if (p < scan->end && *p == ']') {
        *at = p + 1;
        return 0;
    }
    for (; more > 0; more = has_more(&p, scan->end, ']')) {
        if (scan->found->headers - first == scan->rules->headers_max) return NOT_PLAIN;
        if ((result = scan_header(scan, &p, bytes)) != 0) return result;
    }
    *at = p;
    return more < 0 ? NOT_PLAIN : 0;
}

/* The key or the value at *at. Returns 0 if it is no JSON, or a key with escapes that is to be stored as text. */
static inline int scan_text(const struct scan *scan, const uint8_t **at, int is_text, int32_t *from, int32_t *size) {
    const uint8_t *p = *at;
    int has_escapes = 0;
    if ((*at = skip_value(p, scan->end, &has_escapes)) == NULL) return 0;
    int64_t length = *p == 'n' ? -1 : *at - p;
    if (is_text && *p == '"') {
        if (has_escapes) return 0;
        p++;
        length -= 2;
    }
    *from = (int32_t)(p - scan->data);
    *size = (int32_t)length;
    return 1;
}

/* The record at *at. Returns 0, or a result of a scan. */
static int scan_record(const struct scan *scan, const uint8_t **at) {
    const uint8_t *p = skip(*at, scan->end, '{');
    struct found *f = scan->found;
    struct spans *s = scan->spans;
    const struct rules *rules = scan->rules;
    int allowed = KEY | VALUE | PARTITION | TIMESTAMP | HEADERS, result, more = 1;
    if (p == NULL) return NOT_PLAIN;
    if (f->rows == rules->rows) return MORE_ROWS;
    int64_t row = f->rows++, bytes = 0, number;
    s->key_length[row] = s->value_length[row] = s->partition[row] = -1;
    s->key_at[row] = s->value_at[row] = 0;
    s->timestamp[row] = -1;
    s->listed[row] = 0;
    p = skip_blank(p, scan->end);
    if (p < scan->end && *p == '}') {
        p++;
        more = 0;
    }
    while (more > 0) {
        enum field field = read_field(&p, scan->end, allowed);
        allowed &= ~field;
        switch (field) {
        case KEY:
            if (!scan_text(scan, &p, rules->string_keys != 0, &s->key_at[row], &s->key_length[row])) return NOT_PLAIN;
            break;
        case VALUE:
            if (!scan_text(scan, &p, 0, &s->value_at[row], &s->value_length[row])) return NOT_PLAIN;
            break;
        case PARTITION:
            p = read_integer(p, scan->end, rules->partition_first, rules->partition_end, &number);
            if (p == NULL) return NOT_PLAIN;
            s->partition[row] = (int32_t)number;
            break;
        case TIMESTAMP:
            p = read_integer(p, scan->end, 0, rules->timestamp_max + 1, &s->timestamp[row]);
            if (p == NULL) return NOT_PLAIN;
            break;
        case HEADERS:
            if ((result = scan_headers(scan, &p, row, &bytes)) != 0) return result;
            break;
        default:
            return NOT_PLAIN;
        }
        more = has_more(&p, scan->end, '}');
    }
    if (more < 0) return NOT_PLAIN;
    if (s->key_length[row] < 0)
        f->null_keys++;
    else
        f->key_bytes += s->key_length[row], bytes += s->key_length[row];
    if (s->value_length[row] < 0)
        f->null_values++;
    else
        f->value_bytes += s->value_length[row], bytes += s->value_length[row];
    f->timed += s->timestamp[row] >= 0;
    f->named += s->partition[row] >= 0;
    f->bare += !s->listed[row];
    if (bytes > f->largest) f->largest = bytes;
    s->header_end[row] = (int32_t)f->headers;
    *at = p;
    return 0;
}

/* Find the records of all requests in `data`. Returns how many they are, NOT_PLAIN, or which room is too small. */
EXPORT int64_t scan(const uint8_t *data, int64_t size, const struct rules *rules, struct spans *spans, struct found *found) {
    const uint8_t *p = data, *end = data + size;
    struct scan scan = {data, end, rules, spans, found};
    int result, more;
    memset(found, 0, sizeof *found);
    for (int64_t document = 0; document < rules->documents; document++) {
        if ((p = skip(p, end, '{')) == NULL || (p = skip(p, end, '"')) == NULL) return NOT_PLAIN;
        if ((p = skip_word(p, end, "records\"", 8)) == NULL || (p = skip(p, end, ':')) == NULL) return NOT_PLAIN;
        if ((p = skip(p, end, '[')) == NULL) return NOT_PLAIN;
        do {
            if ((result = scan_record(&scan, &p)) != 0) return result;
        } while ((more = has_more(&p, end, ']')) > 0);
        if (more < 0 || (p = skip(p, end, '}')) == NULL) return NOT_PLAIN;
    }
    return skip_blank(p, end) == end ? found->rows : NOT_PLAIN;
}

/* ---- partitions --------------------------------------------------------------------------------------------------- */

/* Kafka's Utils.murmur2, with any seed. */
static inline uint32_t murmur2(const uint8_t *p, int64_t length, uint32_t seed) {
    const uint32_t multiplier = 0x5bd1e995u;
    uint32_t hash = seed ^ (uint32_t)length;
    for (; length >= 4; p += 4, length -= 4) {
        uint32_t word = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
        word *= multiplier;
        word ^= word >> 24;
        hash = hash * multiplier ^ word * multiplier;
    }
    if (length > 2) hash ^= (uint32_t)p[2] << 16;
    if (length > 1) hash ^= (uint32_t)p[1] << 8;
    if (length > 0) hash = (hash ^ p[0]) * multiplier;
    hash = (hash ^ hash >> 13) * multiplier;
    return hash ^ hash >> 15;
}

/* The hash of each value of a column. */
EXPORT void hash_column(const int32_t *offsets, const uint8_t *data, int64_t rows, uint32_t seed, uint32_t *hashes) {
    for (int64_t row = 0; row < rows; row++)
        hashes[row] = murmur2(data + offsets[row], (int64_t)offsets[row + 1] - offsets[row], seed);
}

/* Choose the partition of each record: the named one, or by the key, or `sticky`. `order` gets the rows by rising
 * partition, begins[k] the place in it where partition k begins, begins[partitions] the end. `chosen` is scratch for a
 * number per row. Returns 1; 0 if a record names a partition that is not there. */
EXPORT int64_t place(const uint8_t *data, const struct spans *s, int64_t rows, int64_t partitions, int64_t sticky, uint32_t seed,
                     int32_t *chosen, int64_t *order, int64_t *begins) {
    memset(begins, 0, (size_t)(partitions + 1) * sizeof *begins);
    for (int64_t row = 0; row < rows; row++) {
        int32_t partition = s->partition[row];
        if (partition < 0 && s->key_length[row] < 0) {
            partition = (int32_t)sticky;
        } else if (partition < 0) {
            uint32_t hash = murmur2(data + s->key_at[row], s->key_length[row], seed);
            partition = (int32_t)((hash & 0x7fffffffu) % (uint32_t)partitions);
        }
        if (partition >= partitions) return 0;
        chosen[row] = partition;
        begins[partition + 1]++;
    }
    for (int64_t k = 0; k < partitions; k++) begins[k + 1] += begins[k];
    /* Each begin moves to its end, which is the next one's begin. */
    for (int64_t row = 0; row < rows; row++) order[begins[chosen[row]]++] = row;
    memmove(begins + 1, begins, (size_t)partitions * sizeof *begins);
    begins[0] = 0;
    return 1;
}

/* ---- columns ------------------------------------------------------------------------------------------------------ */

static inline void set(uint8_t *bits, int64_t at) {
    if (bits != NULL) bits[at >> 3] |= (uint8_t)(1 << (at & 7));
}

static void clear(uint8_t *bits, int64_t count) {
    if (bits != NULL) memset(bits, 0, (size_t)((count + 7) / 8));
}

static void begin(struct target *target, int64_t rows) {
    target->offsets[0] = 0;
    clear(target->valid, rows);
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

/* Append the headers of `row` behind those that are there, which *count counts; 0 if they do not fit. */
static int append_headers(const uint8_t *data, const struct spans *s, int64_t row, struct columns *c, int64_t *count) {
    for (int64_t h = row ? s->header_end[row - 1] : 0; h < s->header_end[row]; h++, ++*count) {
        struct target *value = &c->header_value;
        const uint8_t *text = data + s->header_value_at[h];
        int64_t length = s->header_value_length[h], end;
        if (*count == c->headers || !append(&c->header_key, *count, data + s->header_key_at[h], s->header_key_length[h])) return 0;
        end = value->offsets[*count];
        if (length >= 0) {
            int64_t size = decode_base64(text, length, NULL);
            if (size < 0 || size > value->size - end) return 0;
            decode_base64(text, length, value->data + end);
            end += size;
            set(value->valid, *count);
        }
        value->offsets[*count + 1] = (int32_t)end;
    }
    return 1;
}

/* Write all rows as columns, in the `order` of place, or as they came if it is NULL. Returns 1; 0 if they do not fit the
 * sizes, which a scan has found. */
EXPORT int64_t write_columns(const uint8_t *data, const struct spans *s, const int64_t *order, struct columns *c) {
    int64_t count = 0;
    begin(&c->key, c->rows);
    begin(&c->value, c->rows);
    clear(c->timestamps_valid, c->rows);
    if (c->list_offsets != NULL) {
        begin(&c->header_key, c->headers);
        begin(&c->header_value, c->headers);
        clear(c->list_valid, c->rows);
        c->list_offsets[0] = 0;
    }
    for (int64_t i = 0; i < c->rows; i++) {
        int64_t row = order == NULL ? i : order[i];
        if (!append(&c->key, i, data + s->key_at[row], s->key_length[row])) return 0;
        if (!append(&c->value, i, data + s->value_at[row], s->value_length[row])) return 0;
        if (c->timestamps != NULL) {
            c->timestamps[i] = s->timestamp[row] < 0 ? 0 : s->timestamp[row];
            if (s->timestamp[row] >= 0) set(c->timestamps_valid, i);
        }
        if (c->list_offsets != NULL) {
            if (!append_headers(data, s, row, c, &count)) return 0;
            if (s->listed[row]) set(c->list_valid, i);
            c->list_offsets[i + 1] = (int32_t)count;
        }
    }
    return 1;
}

/* ---- answers ------------------------------------------------------------------------------------------------------ */

static inline uint8_t *write_text(uint8_t *p, const char *text, size_t length) {
    memcpy(p, text, length);
    return p + length;
}

static inline uint8_t *write_number(uint8_t *p, int64_t number) {
    uint8_t digits[20];
    int at = sizeof digits;
    uint64_t rest = (uint64_t)number;
    do digits[--at] = (uint8_t)('0' + rest % 10);
    while (rest /= 10);
    memcpy(p, digits + at, sizeof digits - (size_t)at);
    return p + (sizeof digits - (size_t)at);
}

/* Write the place of each record, none negative, as an element of JSON, with commas between. `out` has room for 96 bytes a
 * record, of which at most 85 are used. Returns the length. */
EXPORT int64_t write_places(const int32_t *partitions, const int64_t *offsets, int64_t rows, uint8_t *out) {
    static const char first[] = "{\"partition\":", second[] = ",\"offset\":", third[] = ",\"error_code\":null,\"error\":null},";
    uint8_t *p = out;
    for (int64_t row = 0; row < rows; row++) {
        p = write_text(p, first, sizeof first - 1);
        p = write_number(p, partitions[row]);
        p = write_text(p, second, sizeof second - 1);
        p = write_number(p, offsets[row]);
        p = write_text(p, third, sizeof third - 1);
    }
    return rows ? p - out - 1 : 0;
}
