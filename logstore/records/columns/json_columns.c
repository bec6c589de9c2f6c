/* JSON objects to the columns of a schema: https://www.rfc-editor.org/rfc/rfc8259
 *
 * Plain C11 without Python's headers, so that one library serves every Python; native.py calls it and owns all memory.
 * Each structure here has its twin there. All numbers of the structures are 64 bits wide, also the addresses.
 *
 * Invariants: nothing is read outside of a value, and nothing is written outside of the sizes that the caller gives. A
 * value gets the columns or the reason that one_value.py gives it, or is left to that where this file is not sure: escaped
 * names and times, halves of surrogate pairs, very long numbers, values nested deeply. Functions call each other as deep
 * as the schema, never as deep as a value.
 */
#if defined(__APPLE__)
#include <xlocale.h>
#else
#define _GNU_SOURCE
#endif
#include <locale.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* The CRC-32 of this file as it was compiled: a library that was made from another file is not used. */
EXPORT int64_t source_crc(void) { return SOURCE_CRC; }

/* The levels of objects and arrays that a value may have: a bit for each fits one number. */
#define LEVELS_MAX 64
#define DECIMAL_DIGITS_MAX 38
/* The characters of a number that the C library reads. */
#define DOUBLE_CHARACTERS_MAX 63
#define UNSURE_CODE (-1)
#define FAULTS 16
#define MICROS_MIN INT64_C(-62135596800000000)
#define MICROS_MAX INT64_C(253402300799999999)

typedef unsigned __int128 wide;

/* ---- structures that native.py fills ------------------------------------------------------------------------------ */

enum kind { STRUCT, ARRAY, BOOLEAN, BIGINT, DOUBLE, DECIMAL, STRING, TIMESTAMP, DATE, EPOCH };

/* The faults of field_tree.py that this file finds. */
enum fault {
    NO_FAULT,
    IS_STRING,
    IS_NUMBER,
    IS_BOOLEAN,
    IS_OBJECT,
    IS_ARRAY,
    IS_NULL,
    FRACTION,
    RANGE,
    TEXT,
    TWICE,
    EMPTY,
    NOT_UTF8,
    NOT_JSON,
};

/* A field, and its column so far. A struct has `children` from `first`, sorted by length and bytes of their names;
 * an array has its element at `first`, and `inner` is the space of its elements. */
struct node {
    int64_t kind, first, children, inner;
    const uint8_t *name;
    int64_t name_length;
    int64_t parameter, precision; /* a decimal's scale, and digits; the microseconds of an epoch's unit */
    int64_t width;                /* the bytes of an element in data; 0 for bits, and without data */
    uint8_t *valid, *data;
    int32_t *offsets;
    int64_t data_size;      /* of a string's data */
    int64_t following;      /* the sibling that stood behind this field last time; of a struct, `leading` was its first */
    int64_t leading;
    int64_t seen;           /* the object in which this field was seen last */
};

/* Nodes that have the same number of elements: the rows, or the elements of an array. The nodes are members[first ...],
 * and those with offsets come first. */
struct space {
    int64_t first, members, variable;
    int64_t length, capacity, kept; /* kept: the length before the row that is read */
};

struct values {
    int64_t rows;
    const uint8_t *valid; /* bit `bit` is of the first row; NULL if no value is null */
    int64_t bit;
    const int32_t *offsets;
    const uint8_t *data;
};

struct task {
    struct node *nodes;
    struct space *spaces;
    int64_t space_count;
    const int64_t *members;
    int32_t *codes; /* 0, -1 for a value that one_value.py decides on, or the node and the fault of a misfit */
    int64_t row;    /* the row to go on with */
    int64_t full;   /* the node whose memory is full */
    int64_t needed; /* the size that its strings need at least, or the elements of its array */
    int64_t objects; /* counts the objects of known fields, so that a field seen twice in one is found */
};

/* ---- reading a value ---------------------------------------------------------------------------------------------- */

/* INVALID: the value is no JSON. UNSURE: one_value.py has to decide. */
enum outcome { INVALID, UNSURE, READ, FULL };

struct reader {
    const uint8_t *p, *end;
    struct task *task;
    int64_t misfit; /* the code of the first misfit */
    locale_t locale;
    wide powers[DECIMAL_DIGITS_MAX + 1];
};

static inline void set(uint8_t *bits, int64_t at) { bits[at >> 3] |= (uint8_t)(1 << (at & 7)); }

static inline void clear(uint8_t *bits, int64_t at) { bits[at >> 3] &= (uint8_t) ~(1 << (at & 7)); }

static inline void skip_space(struct reader *reader) {
    const uint8_t *p = reader->p;
    while (p < reader->end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    reader->p = p;
}

/* Go past one character, and space before it; 0 if another character is there. */
static inline int take(struct reader *reader, uint8_t character) {
    skip_space(reader);
    if (reader->p >= reader->end || *reader->p != character) return 0;
    reader->p++;
    return 1;
}

static inline enum outcome literal(struct reader *reader, const char *text, int64_t length) {
    if (reader->end - reader->p < length || memcmp(reader->p, text, (size_t)length)) return INVALID;
    reader->p += length;
    return READ;
}

static inline int is_digit(uint8_t character) { return (uint8_t)(character - '0') <= 9; }

/* ---- strings ------------------------------------------------------------------------------------------------------ */

struct string {
    const uint8_t *begin, *end;
    int escaped;
};

/* A character of several bytes: RFC 3629, no overlong forms, no surrogates, nothing above U+10FFFF. */
static inline const uint8_t *utf8(const uint8_t *p, const uint8_t *end) {
    uint8_t first = *p++, low = 0x80, high = 0xBF;
    int more = first < 0xE0 ? 1 : first < 0xF0 ? 2 : 3;
    if (first < 0xC2 || first > 0xF4 || end - p < more) return NULL;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
    for (; more; more--, p++, low = 0x80, high = 0xBF)
        if (*p < low || *p > high) return NULL;
    return p;
}

/* The number of four hexadecimal digits; -1 if they are none. */
static inline int32_t hexadecimal(const uint8_t *p, const uint8_t *end) {
    int32_t number = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        uint8_t letter = p[i] | 0x20;
        if (is_digit(p[i]))
            number = number * 16 + p[i] - '0';
        else if (letter >= 'a' && letter <= 'f')
            number = number * 16 + letter - 'a' + 10;
        else
            return -1;
    }
    return number;
}

/* The character of an escape whose letter u is at *at, which is moved behind it; -1 if it is none, -2 if it is half of a
 * pair. */
static inline int32_t unicode_escape(const uint8_t **at, const uint8_t *end) {
    int32_t high = hexadecimal(*at + 1, end), low;
    *at += 5;
    if (high < 0xD800 || high > 0xDFFF) return high;
    if (high > 0xDBFF || end - *at < 6 || (*at)[0] != '\\' || (*at)[1] != 'u') return -2;
    low = hexadecimal(*at + 2, end);
    if (low < 0xDC00 || low > 0xDFFF) return -2;
    *at += 6;
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
}

#define EACH(byte) (UINT64_C(0x0101010101010101) * (byte))

/* The string whose quote is at p; its escapes and characters are valid then. */
static inline enum outcome read_string(struct reader *reader, struct string *string) {
    const uint8_t *p = reader->p + 1, *end = reader->end;
    string->begin = p;
    string->escaped = 0;
    for (;;) {
        uint64_t eight;
        while (end - p >= 8) {
            memcpy(&eight, p, 8);
            /* A high bit is set where a byte is a quote, a backslash, a control character, or not ASCII. */
            if (((((eight ^ EACH('"')) - EACH(1)) | ((eight ^ EACH('\\')) - EACH(1)) | (eight - EACH(0x20)) | eight) &
                 EACH(0x80)) != 0)
                break;
            p += 8;
        }
        while (p < end && *p != '"' && *p != '\\' && *p >= 0x20 && *p < 0x80) p++;
        if (p >= end || *p < 0x20) return INVALID;
        if (*p == '"') break;
        if (*p >= 0x80) {
            p = utf8(p, end);
            if (p == NULL) return INVALID;
            continue;
        }
        string->escaped = 1;
        if (end - ++p < 1) return INVALID;
        if (*p == 'u') {
            int32_t character = unicode_escape(&p, end);
            if (character < 0) return character == -1 ? INVALID : UNSURE;
        } else if (memchr("\"\\/bfnrt", *p, 8) != NULL) {
            p++;
        } else {
            return INVALID;
        }
    }
    string->end = p;
    reader->p = p + 1;
    return READ;
}

/* Write the text of a valid string with escapes, which is never longer. Returns its end. */
static uint8_t *unescape(const struct string *string, uint8_t *out) {
    for (const uint8_t *p = string->begin; p < string->end;) {
        if (*p != '\\') {
            *out++ = *p++;
            continue;
        }
        int32_t character;
        switch (*++p) {
        case 'u':
            character = unicode_escape(&p, string->end);
            break;
        case 'b':
            character = '\b', p++;
            break;
        case 'f':
            character = '\f', p++;
            break;
        case 'n':
            character = '\n', p++;
            break;
        case 'r':
            character = '\r', p++;
            break;
        case 't':
            character = '\t', p++;
            break;
        default:
            character = *p++;
        }
        if (character < 0x80) {
            *out++ = (uint8_t)character;
        } else if (character < 0x800) {
            *out++ = (uint8_t)(0xC0 | character >> 6);
            *out++ = (uint8_t)(0x80 | (character & 0x3F));
        } else if (character < 0x10000) {
            *out++ = (uint8_t)(0xE0 | character >> 12);
            *out++ = (uint8_t)(0x80 | (character >> 6 & 0x3F));
            *out++ = (uint8_t)(0x80 | (character & 0x3F));
        } else {
            *out++ = (uint8_t)(0xF0 | character >> 18);
            *out++ = (uint8_t)(0x80 | (character >> 12 & 0x3F));
            *out++ = (uint8_t)(0x80 | (character >> 6 & 0x3F));
            *out++ = (uint8_t)(0x80 | (character & 0x3F));
        }
    }
    return out;
}

/* ---- numbers ------------------------------------------------------------------------------------------------------ */

/* The number is `digits` times ten to the power of `exponent`; with more than 19 digits that count, `digits` is not it. */
struct number {
    const uint8_t *begin, *end;
    uint64_t digits;
    int64_t count, exponent;
    int negative, whole; /* whole: no fraction and no exponent is written */
};

static inline const uint8_t *read_digits(const uint8_t *p, const uint8_t *end, struct number *number) {
    for (; p < end && is_digit(*p); p++) {
        number->digits = number->digits * 10 + (uint64_t)(*p - '0');
        number->count += number->count || *p != '0';
    }
    return p;
}

/* The number at p, by the grammar of JSON. */
static inline enum outcome read_number(struct reader *reader, struct number *number) {
    const uint8_t *p = reader->p, *end = reader->end, *digits;
    *number = (struct number){.begin = p, .whole = 1};
    if (p < end && *p == '-') number->negative = 1, p++;
    digits = p;
    p = read_digits(p, end, number);
    if (p == digits || (*digits == '0' && p - digits > 1)) return INVALID;
    if (p < end && *p == '.') {
        digits = ++p;
        p = read_digits(p, end, number);
        if (p == digits) return INVALID;
        number->exponent = digits - p;
        number->whole = 0;
    }
    if (p < end && (*p | 0x20) == 'e') {
        int64_t written = 0;
        int negative = 0;
        if (++p < end && (*p == '-' || *p == '+')) negative = *p++ == '-';
        digits = p;
        for (; p < end && is_digit(*p); p++)
            if (written < 100000) written = written * 10 + (*p - '0');
        if (p == digits) return INVALID;
        number->exponent += negative ? -written : written;
        number->whole = 0;
    }
    number->end = reader->p = p;
    return READ;
}

/* The number as an integer, or the fault. */
static inline enum fault integer(const struct number *number, int64_t *value) {
    if (!number->whole) return FRACTION;
    if (number->count > 19 || number->digits > (uint64_t)INT64_MAX + (uint64_t)number->negative) return RANGE;
    *value = (int64_t)(number->negative ? 0 - number->digits : number->digits);
    return NO_FAULT;
}

static const double POWERS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* The nearest double. Both numbers of one multiplication or division are exact, and so its result is the nearest; the C
 * library reads all others. */
static inline enum outcome real(const struct reader *reader, const struct number *number, double *value) {
    char text[DOUBLE_CHARACTERS_MAX + 1];
    if (number->count <= 19 && number->digits <= UINT64_C(1) << 53 && number->exponent >= -22 && number->exponent <= 22) {
        double digits = (double)number->digits;
        digits = number->exponent < 0 ? digits / POWERS[-number->exponent] : digits * POWERS[number->exponent];
        *value = number->negative ? -digits : digits;
        return READ;
    }
    if (number->end - number->begin > DOUBLE_CHARACTERS_MAX || reader->locale == (locale_t)0) return UNSURE;
    memcpy(text, number->begin, (size_t)(number->end - number->begin));
    text[number->end - number->begin] = 0;
    *value = strtod_l(text, NULL, reader->locale);
    return READ;
}

/* The decimal of a number's text, or of a string, which may also have a plus sign, or no digit on one side of its point.
 * A text with more digits than a decimal has is left to one_value.py. */
static enum outcome decimal(const struct reader *reader, const struct node *node, const uint8_t *p, const uint8_t *end,
                            __int128 *value, enum fault *fault) {
    wide digits = 0;
    int64_t fraction = 0, exponent = 0, count = 0;
    int negative = 0, any = 0, point = 0;
    *fault = TEXT;
    if (p < end && (*p == '-' || *p == '+')) negative = *p++ == '-';
    for (; p < end && (is_digit(*p) || (*p == '.' && !point)); p++) {
        if (*p == '.') {
            point = 1;
            continue;
        }
        any = 1;
        digits = digits * 10 + (wide)(*p - '0');
        count += count || *p != '0';
        fraction += point;
        if (count > DECIMAL_DIGITS_MAX) return UNSURE;
    }
    if (!any) return READ;
    if (p < end && (*p | 0x20) == 'e') {
        int down = 0;
        if (++p < end && (*p == '-' || *p == '+')) down = *p++ == '-';
        if (p >= end) return READ;
        for (; p < end && is_digit(*p); p++)
            if (exponent < 100000) exponent = exponent * 10 + (*p - '0');
        if (exponent >= 100000) return UNSURE;
        if (down) exponent = -exponent;
    }
    if (p < end) return READ;
    *fault = RANGE;
    int64_t zeros = digits == 0 ? 0 : exponent - fraction + node->parameter;
    for (; zeros < 0; zeros++, digits /= 10)
        if (digits % 10) return READ;
    for (; zeros > 0 && digits < reader->powers[node->precision - 1]; zeros--) digits *= 10;
    if (zeros || digits >= reader->powers[node->precision]) return READ;
    *fault = NO_FAULT;
    *value = negative ? -(__int128)digits : (__int128)digits;
    return READ;
}

/* ---- times: the rule of times.py ---------------------------------------------------------------------------------- */

/* A number of some digits; -1 if they are none. */
static inline int64_t digits_of(const uint8_t *p, int count) {
    int64_t number = 0;
    for (int i = 0; i < count; i++) {
        if (!is_digit(p[i])) return -1;
        number = number * 10 + (p[i] - '0');
    }
    return number;
}

/* The days since 1970 of ten characters; 0 if they are no date. The year is counted from March, so that a leap day is its
 * last one, and eras have 400 years. */
static inline int date(const uint8_t *p, int64_t *days) {
    static const uint8_t lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    int64_t year = digits_of(p, 4), month = digits_of(p + 5, 2), day = digits_of(p + 8, 2);
    if (p[4] != '-' || p[7] != '-' || year < 1 || month < 1 || month > 12 || day < 1) return 0;
    int leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    if (day > lengths[month - 1] + (leap && month == 2)) return 0;
    int64_t from_march = month <= 2 ? year - 1 : year, era = from_march / 400, of_era = from_march % 400;
    int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    *days = era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
    return 1;
}

static int timestamp(const uint8_t *p, const uint8_t *end, int64_t *micros) {
    int64_t days, hour, minute, second, fraction = 0, unit = 100000, zone = 0;
    if (end - p < 19 || !date(p, &days)) return 0;
    hour = digits_of(p + 11, 2);
    minute = digits_of(p + 14, 2);
    second = digits_of(p + 17, 2);
    if ((p[10] != 'T' && p[10] != 't' && p[10] != ' ') || p[13] != ':' || p[16] != ':') return 0;
    if (hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59) return 0;
    p += 19;
    if (p < end && *p == '.') {
        const uint8_t *digits = ++p;
        for (; p < end && is_digit(*p); p++, unit /= 10) fraction += (*p - '0') * unit;
        if (p == digits) return 0;
    }
    if (end - p == 1) {
        if (*p != 'Z' && *p != 'z') return 0;
    } else if (end - p == 6) {
        int64_t hours = digits_of(p + 1, 2), minutes = digits_of(p + 4, 2);
        if ((*p != '+' && *p != '-') || p[3] != ':' || hours < 0 || hours > 23 || minutes < 0 || minutes > 59) return 0;
        zone = (*p == '-' ? -1 : 1) * (hours * 3600 + minutes * 60);
    } else if (p != end) {
        return 0;
    }
    *micros = (days * 86400 + hour * 3600 + minute * 60 + second - zone) * 1000000 + fraction;
    return *micros >= MICROS_MIN && *micros <= MICROS_MAX;
}

/* ---- fields that are not declared, or do not fit ------------------------------------------------------------------- */

/* Go past one value of any kind, in an object or array of `level` levels. Its own levels are bits: set for an object. */
static enum outcome pass_over(struct reader *reader, int level) {
    uint64_t objects = 0;
    int begin = level;
    struct string string;
    struct number number;
    for (;;) {
        /* A value is next. */
        skip_space(reader);
        if (reader->p >= reader->end) return INVALID;
        uint8_t first = *reader->p;
        enum outcome outcome = READ;
        if (first == '{' || first == '[') {
            if (level == LEVELS_MAX) return UNSURE;
            uint64_t bit = UINT64_C(1) << level++;
            objects = first == '{' ? objects | bit : objects & ~bit;
            reader->p++;
            if (!take(reader, first == '{' ? '}' : ']')) {
                if (first == '[') continue;
                goto name;
            }
            level--;
        } else if (first == '"') {
            outcome = read_string(reader, &string);
        } else if (first == 't') {
            outcome = literal(reader, "true", 4);
        } else if (first == 'f') {
            outcome = literal(reader, "false", 5);
        } else if (first == 'n') {
            outcome = literal(reader, "null", 4);
        } else {
            outcome = read_number(reader, &number);
        }
        if (outcome != READ) return outcome;
        /* The value has ended, and with it perhaps what it was the last one of. */
        while (level > begin && !take(reader, ','))
            if (!take(reader, objects >> (level - 1) & 1 ? '}' : ']'))
                return INVALID;
            else
                level--;
        if (level == begin) return READ;
        if (!(objects >> (level - 1) & 1)) continue;
    name:
        skip_space(reader);
        if (reader->p >= reader->end || *reader->p != '"') return INVALID;
        outcome = read_string(reader, &string);
        if (outcome != READ) return outcome;
        if (!take(reader, ':')) return INVALID;
    }
}

static inline void note(struct reader *reader, const struct node *node, enum fault fault) {
    if (!reader->misfit) reader->misfit = (node - reader->task->nodes) * FAULTS + fault;
}

/* Note what kind of value is there instead of the expected one, and go past it. */
static enum outcome other_kind(struct reader *reader, const struct node *node, int level) {
    switch (*reader->p) {
    case '"':
        note(reader, node, IS_STRING);
        break;
    case '{':
        note(reader, node, IS_OBJECT);
        break;
    case '[':
        note(reader, node, IS_ARRAY);
        break;
    case 't':
    case 'f':
        note(reader, node, IS_BOOLEAN);
        break;
    default:
        note(reader, node, IS_NUMBER);
    }
    return pass_over(reader, level);
}

/* ---- declared fields ---------------------------------------------------------------------------------------------- */

static enum outcome read_value(struct reader *reader, struct node *node, int64_t at, int level);

/* Append a null element, which a value may replace. */
static inline void append_null(const struct task *task, struct space *space, int64_t at) {
    const int64_t *member = task->members + space->first;
    for (int64_t i = 0; i < space->variable; i++) {
        int32_t *offsets = task->nodes[member[i]].offsets;
        offsets[at + 1] = offsets[at];
    }
    space->length = at + 1;
}

static inline int compare(const struct node *node, const uint8_t *name, int64_t length) {
    return node->name_length != length ? (node->name_length < length ? -1 : 1)
                                       : memcmp(node->name, name, (size_t)length);
}

/* The number of the field with a name; -1 if it is not declared. */
static int64_t find(const struct node *nodes, const struct node *parent, const struct string *name) {
    int64_t low = parent->first, high = parent->first + parent->children;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        int order = compare(&nodes[middle], name->begin, name->end - name->begin);
        if (order == 0) return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return -1;
}

/* The field whose name is at p, which is moved behind the colon. Fields mostly have the order of the object before. */
static inline enum outcome read_name(struct reader *reader, const struct node *parent, int64_t *expected,
                                     int64_t *found) {
    const struct node *nodes = reader->task->nodes;
    struct string name;
    skip_space(reader);
    if (reader->p >= reader->end || *reader->p != '"') return INVALID;
    if (*expected >= 0) {
        const struct node *node = &nodes[*expected];
        int64_t length = node->name_length;
        if (reader->end - reader->p > length + 1 && reader->p[length + 1] == '"' &&
            !memcmp(reader->p + 1, node->name, (size_t)length)) {
            reader->p += length + 2;
            *found = *expected;
            return take(reader, ':') ? READ : INVALID;
        }
    }
    /* A name with escapes may be that of a field. */
    enum outcome outcome = read_string(reader, &name);
    if (outcome != READ) return outcome;
    if (name.escaped) return UNSURE;
    *found = find(nodes, parent, &name);
    if (*found >= 0) *expected = *found;
    return take(reader, ':') ? READ : INVALID;
}

static enum outcome read_object(struct reader *reader, struct node *parent, int64_t at, int level) {
    struct node *nodes = reader->task->nodes;
    int64_t object = ++reader->task->objects, *expected = &parent->leading, field;
    reader->p++;
    if (level == LEVELS_MAX) return UNSURE;
    level++;
    if (take(reader, '}')) return READ;
    do {
        enum outcome outcome = read_name(reader, parent, expected, &field);
        if (outcome != READ) return outcome;
        skip_space(reader);
        if (reader->p >= reader->end) return INVALID;
        if (field < 0) {
            outcome = pass_over(reader, level);
        } else if (nodes[field].seen == object) {
            note(reader, &nodes[field], TWICE);
            outcome = pass_over(reader, level);
        } else {
            nodes[field].seen = object;
            expected = &nodes[field].following;
            outcome = read_value(reader, &nodes[field], at, level);
        }
        if (outcome != READ) return outcome;
    } while (take(reader, ','));
    return take(reader, '}') ? READ : INVALID;
}

static enum outcome read_array(struct reader *reader, struct node *node, int64_t at, int level) {
    struct space *inner = &reader->task->spaces[node->inner];
    reader->p++;
    if (level == LEVELS_MAX) return UNSURE;
    level++;
    if (!take(reader, ']')) {
        do {
            skip_space(reader);
            if (reader->p >= reader->end) return INVALID;
            if (inner->length == inner->capacity) {
                reader->task->full = node - reader->task->nodes;
                reader->task->needed = inner->capacity + 1;
                return FULL;
            }
            append_null(reader->task, inner, inner->length);
            enum outcome outcome =
                read_value(reader, &reader->task->nodes[node->first], inner->length - 1, level);
            if (outcome != READ) return outcome;
        } while (take(reader, ','));
        if (!take(reader, ']')) return INVALID;
    }
    node->offsets[at + 1] = (int32_t)inner->length;
    return READ;
}

static enum outcome read_text(struct reader *reader, struct node *node, int64_t at) {
    struct string string;
    enum outcome outcome = read_string(reader, &string);
    if (outcome != READ) return outcome;
    int64_t begin = node->offsets[at], length = string.end - string.begin;
    if (length > node->data_size - begin) {
        reader->task->full = node - reader->task->nodes;
        reader->task->needed = begin + length;
        return FULL;
    }
    if (string.escaped)
        length = unescape(&string, node->data + begin) - (node->data + begin);
    else if (length)
        memcpy(node->data + begin, string.begin, (size_t)length);
    node->offsets[at + 1] = (int32_t)(begin + length);
    set(node->valid, at);
    return READ;
}

static enum outcome read_time(struct reader *reader, struct node *node, int64_t at) {
    struct string string;
    int64_t time = 0;
    enum outcome outcome = read_string(reader, &string);
    if (outcome != READ) return outcome;
    if (string.escaped) return UNSURE;
    if (node->kind == TIMESTAMP ? !timestamp(string.begin, string.end, &time)
                                : string.end - string.begin != 10 || !date(string.begin, &time)) {
        note(reader, node, TEXT);
        return READ;
    }
    if (node->kind == TIMESTAMP)
        ((int64_t *)(void *)node->data)[at] = time;
    else
        ((int32_t *)(void *)node->data)[at] = (int32_t)time;
    set(node->valid, at);
    return READ;
}

static enum outcome read_integer(struct reader *reader, struct node *node, int64_t at) {
    struct number number;
    int64_t value = 0;
    if (read_number(reader, &number) != READ) return INVALID;
    enum fault fault = integer(&number, &value);
    if (!fault && node->kind == EPOCH &&
        (__builtin_mul_overflow(value, node->parameter, &value) || value < MICROS_MIN || value > MICROS_MAX))
        fault = RANGE;
    if (fault) {
        note(reader, node, fault);
    } else {
        ((int64_t *)(void *)node->data)[at] = value;
        set(node->valid, at);
    }
    return READ;
}

static enum outcome read_double(struct reader *reader, struct node *node, int64_t at) {
    struct number number;
    double value = 0;
    enum outcome outcome = read_number(reader, &number);
    if (outcome == READ) outcome = real(reader, &number, &value);
    if (outcome != READ) return outcome;
    if (value - value != 0) {
        note(reader, node, RANGE);
    } else {
        ((double *)(void *)node->data)[at] = value;
        set(node->valid, at);
    }
    return READ;
}

static enum outcome read_decimal(struct reader *reader, struct node *node, int64_t at) {
    struct number number;
    struct string string = {.escaped = 0};
    enum outcome outcome;
    if (*reader->p == '"') {
        outcome = read_string(reader, &string);
    } else {
        outcome = read_number(reader, &number);
        string.begin = number.begin, string.end = number.end;
    }
    if (outcome != READ) return outcome;
    if (string.escaped) return UNSURE;
    __int128 value = 0;
    enum fault fault;
    if (decimal(reader, node, string.begin, string.end, &value, &fault) != READ) return UNSURE;
    if (fault) {
        note(reader, node, fault);
    } else {
        memcpy(node->data + 16 * at, &value, 16);
        set(node->valid, at);
    }
    return READ;
}

/* The value at p as element `at` of a node; a null stays the null that it is. */
static enum outcome read_value(struct reader *reader, struct node *node, int64_t at, int level) {
    uint8_t first = *reader->p;
    int numeric = first == '-' || is_digit(first);
    enum outcome outcome;
    if (first == 'n') return literal(reader, "null", 4);
    switch (node->kind) {
    case STRUCT:
        if (first != '{') break;
        outcome = read_object(reader, node, at, level);
        if (outcome == READ) set(node->valid, at);
        return outcome;
    case ARRAY:
        if (first != '[') break;
        outcome = read_array(reader, node, at, level);
        if (outcome == READ) set(node->valid, at);
        return outcome;
    case BOOLEAN:
        if (first != 't' && first != 'f') break;
        if (first == 't') set(node->data, at);
        set(node->valid, at);
        return first == 't' ? literal(reader, "true", 4) : literal(reader, "false", 5);
    case BIGINT:
    case EPOCH:
        if (!numeric) break;
        return read_integer(reader, node, at);
    case DOUBLE:
        if (!numeric) break;
        return read_double(reader, node, at);
    case DECIMAL:
        if (!numeric && first != '"') break;
        return read_decimal(reader, node, at);
    case STRING:
        if (first != '"') break;
        return read_text(reader, node, at);
    case TIMESTAMP:
    case DATE:
        if (first != '"') break;
        return read_time(reader, node, at);
    }
    return other_kind(reader, node, level);
}

/* ---- rows --------------------------------------------------------------------------------------------------------- */

/* Make the elements from `begin` to `end` of a space null again. */
static void erase(const struct task *task, const struct space *space, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < space->members; i++) {
        const struct node *node = &task->nodes[task->members[space->first + i]];
        for (int64_t at = begin; at < end; at++) {
            clear(node->valid, at);
            if (node->kind == BOOLEAN) clear(node->data, at);
            if (i < space->variable) node->offsets[at + 1] = node->offsets[at];
        }
        if (node->width && end > begin)
            memset(node->data + node->width * begin, 0, (size_t)(node->width * (end - begin)));
    }
}

/* The verdict on a value that is no JSON: one_value.py looks for these faults first. */
static int64_t no_json(const uint8_t *p, const uint8_t *end) {
    int64_t brackets = 0;
    int empty = 1;
    while (p < end) {
        empty = empty && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t');
        brackets += *p == '{' || *p == '[';
        p = *p < 0x80 ? p + 1 : utf8(p, end);
        if (p == NULL) return NOT_UTF8;
    }
    return empty ? EMPTY : brackets > LEVELS_MAX ? UNSURE_CODE : NOT_JSON;
}

/* Append the row of one value. Returns its code; the row is null unless it is 0, or memory was full. */
static int64_t append_row(struct reader *reader, int64_t row, const uint8_t *data, const uint8_t *end) {
    struct task *task = reader->task;
    struct node *root = &task->nodes[0];
    reader->p = data;
    reader->end = end;
    reader->misfit = 0;
    for (int64_t i = 1; i < task->space_count; i++) task->spaces[i].kept = task->spaces[i].length;
    enum outcome outcome = INVALID;
    skip_space(reader);
    if (reader->p < end) {
        if (*reader->p == '{') {
            outcome = read_object(reader, root, row, 0);
        } else if (*reader->p == 'n') {
            note(reader, root, IS_NULL);
            outcome = literal(reader, "null", 4);
        } else {
            outcome = other_kind(reader, root, 0);
        }
    }
    skip_space(reader);
    if (outcome == READ && reader->p != end) outcome = INVALID;
    if (outcome == READ && !reader->misfit) return 0;
    erase(task, &task->spaces[0], row, row + 1);
    for (int64_t i = 1; i < task->space_count; i++) {
        struct space *inner = &task->spaces[i];
        erase(task, inner, inner->kept, inner->length);
        inner->length = inner->kept;
    }
    return outcome == READ ? reader->misfit : outcome == INVALID ? no_json(data, end) : UNSURE_CODE;
}

/* Append the rows of values from task->row. Returns the number of rows that are done: fewer than all if task->full names
 * a node that needs more memory. All memory of columns is zero at first. */
EXPORT int64_t derive(const struct values *values, struct task *task) {
    struct reader reader = {.task = task, .locale = newlocale(LC_ALL_MASK, "C", (locale_t)0)};
    reader.powers[0] = 1;
    for (int i = 1; i <= DECIMAL_DIGITS_MAX; i++) reader.powers[i] = reader.powers[i - 1] * 10;
    task->full = -1;
    for (; task->row < values->rows; task->row++) {
        int64_t row = task->row, bit = values->bit + row;
        append_null(task, &task->spaces[0], row);
        task->codes[row] = 0;
        if (values->valid != NULL && !(values->valid[bit >> 3] >> (bit & 7) & 1)) continue;
        task->codes[row] = (int32_t)
            append_row(&reader, row, values->data + values->offsets[row], values->data + values->offsets[row + 1]);
        if (task->full >= 0) break;
    }
    if (reader.locale != (locale_t)0) freelocale(reader.locale);
    return task->row;
}
