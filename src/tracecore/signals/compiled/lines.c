/* The passes over the bytes of a block of log lines, each of which also exists in numpy (see __init__.py).

   The text is untrusted. Every function checks what it writes against the room it was given and returns -1 where that
   is too small. Sums wrap around like numpy's, so they are made without a sign. Compiled without contracting floating
   point, so that every processor rounds alike. */

#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

typedef uint8_t byte;
typedef int64_t number;

enum { DROPPED = 1, DIGIT = 2 };
static const uint64_t MULTIPLIER = 0x9E3779B97F4A7C15u;

static int is_digit(byte c) { return (byte)(c - '0') < 10; }
static int is_letter(byte c) { return (byte)((c | 32) - 'a') < 26; }

/* Says from which source this was compiled. */
uint32_t source(void) { return SOURCE; }

/* Where lines end. Returns how many there are. */
number line_ends(const byte *text, number size, number *ends, number room) {
    number count = 0;
    const byte *at = text, *stop = text + size;
    while (at < stop && (at = memchr(at, '\n', (size_t)(stop - at))) != NULL) {
        if (count == room) return -1;
        ends[count++] = at++ - text;
    }
    return count;
}

/* Where a literal is found first from a place on; -1 for nowhere. */
number find(const byte *text, number size, number begin, const byte *literal, number length) {
    if (begin < 0 || begin > size) return -1;
    const byte *at = memmem(text + begin, (size_t)(size - begin), literal, (size_t)length);
    return at == NULL ? -1 : at - text;
}

/* A text in which each carriage return is a newline, or a space where one follows. Returns the size. */
number lined(const byte *text, number size, byte *out, number room) {
    if (room < size) return -1;
    memcpy(out, text, (size_t)size);
    byte *at = out, *stop = out + size;
    while (at < stop && (at = memchr(at, '\r', (size_t)(stop - at))) != NULL) {
        *at = at + 1 < stop && at[1] == '\n' ? ' ' : '\n';
        at++;
    }
    return size;
}

/* Some stretches of a text, one per line. Returns the size. */
number joined(const byte *text, number size, const number *starts, const number *stops, number lines, byte *out,
              number room) {
    number done = 0;
    for (number line = 0; line < lines; line++) {
        number start = starts[line], length = stops[line] - start;
        if (start < 0 || length < 0 || length > size - start || length + 1 > room - done) return -1;
        memcpy(out + done, text + start, (size_t)length);
        done += length;
        out[done++] = '\n';
    }
    return done;
}

static int hexadecimal(byte c) {
    return is_digit(c) ? c - '0' : (byte)((c | 32) - 'a') < 6 ? (c | 32) - 'a' + 10 : -1;
}

/* What four hexadecimal digits say; -1 where they are none. */
static int code_point(const byte *text) {
    int code = 0;
    for (int place = 0; place < 4; place++) {
        int digit = hexadecimal(text[place]);
        if (digit < 0) return -1;
        code = code << 4 | digit;
    }
    return code;
}

static number unescaped(const byte *text, number size, byte line_break, byte *out) {
    static const char escapes[] = "\"/\\tbfnr", meanings[] = "\"/\\\t\b\f\n\n";
    number at = 0, done = 0;
    int code;
    while (at < size) {
        const byte *next = memchr(text + at, '\\', (size_t)(size - at));
        number stop = next == NULL ? size : next - text;
        memcpy(out + done, text + at, (size_t)(stop - at));
        done += stop - at;
        at = stop;
        if (size - at < 2) {
            if (at < size) out[done++] = text[at++];
            continue;
        }
        byte escape = text[at + 1];
        const char *known = escape ? strchr(escapes, escape) : NULL;
        if (known != NULL) {
            char meant = meanings[known - escapes];
            out[done++] = meant == '\n' ? line_break : (byte)meant;
            at += 2;
        } else if (escape == 'u' && size - at >= 6 && (code = code_point(text + at + 2)) >= 0) {
            if (code == '\n' || code == '\r') code = line_break;
            if (code >= 0xd800 && code < 0xe000) code = 0x17f; /* half of a pair: see `selection._meant` */
            if (code >= 0x800) out[done++] = (byte)(0xe0 | code >> 12);
            if (code >= 0x80) out[done++] = (byte)(code >= 0x800 ? 0x80 | (code >> 6 & 0x3f) : 0xc0 | code >> 6);
            out[done++] = (byte)(code >= 0x80 ? 0x80 | (code & 0x3f) : code);
            at += 6;
        } else {
            out[done++] = text[at++];
        }
    }
    return done;
}

static number without_nul(byte *text, number size) {
    const byte *first = memchr(text, 0, (size_t)size);
    if (first == NULL) return size;
    number done = first - text;
    for (number at = done; at < size; at++) {
        text[done] = text[at];
        done += text[at] != 0;
    }
    return done;
}

/* The length of the terminal code that a text begins with; 0 for none. */
static number code_length(const byte *text, number size) {
    if (size < 2) return 0;
    byte kind = text[1];
    number at = 2;
    if (kind == '[') {
        while (at < size && text[at] >= 0x30 && text[at] <= 0x3f) at++;
        while (at < size && text[at] >= 0x20 && text[at] <= 0x2f) at++;
        return at < size && text[at] >= 0x40 && text[at] <= 0x7e ? at + 1 : 0;
    }
    if (kind == ']') {
        while (at < size && at < 202 && text[at] != 7 && text[at] != 27 && text[at] != '\r' && text[at] != '\n') at++;
        if (at < size && text[at] == 7) return at + 1;
        return at + 1 < size && text[at] == 27 && text[at + 1] == '\\' ? at + 2 : 0;
    }
    return (kind >= '@' && kind <= 'Z') || kind == '\\' || kind == '^' || kind == '_' ? 2 : 0;
}

static number without_codes(byte *text, number size) {
    number at = 0, done = 0;
    while (at < size) {
        const byte *next = memchr(text + at, 27, (size_t)(size - at));
        number stop = next == NULL ? size : next - text;
        memmove(text + done, text + at, (size_t)(stop - at));
        done += stop - at;
        at = stop;
        if (at == size) break;
        number length = code_length(text + at, size - at);
        if (length == 0) text[done++] = text[at++];
        at += length;
    }
    return done;
}

/* A text without escapes of JSON, if it has such, without terminal codes and NULs. Returns the size. */
number plain(const byte *text, number size, int escaped, byte line_break, byte *out, number room) {
    if (room < size) return -1;
    if (escaped)
        size = without_nul(out, unescaped(text, size, line_break, out));
    else
        memcpy(out, text, (size_t)size);
    return without_nul(out, without_codes(out, size));
}

/* Of each line a key, which is a hash of it without the bytes that `kinds` says are dropped, and its runs of digits.
   Their begins and ends go into `edges` by turns; `first` says which is the first of each line, and of one more.
   `scratch` holds the longest line. Returns the number of runs. */
number keyed(const byte *text, number size, const number *ends, number lines, const byte *kinds, uint64_t seed,
             byte *scratch, number longest, uint64_t *keys, number *first, int32_t *edges, number room) {
    number start = 0, count = 0;
    if (size > INT32_MAX) return -1;
    for (number line = 0; line < lines; line++) {
        number stop = ends[line];
        if (stop < start || stop > size || stop - start > longest - 8 || stop - start > room - count - 2) return -1;
        number kept = 0;
        int digit = 0;
        first[line] = count / 2;
        for (number at = start; at < stop; at++) {
            byte c = text[at];
            int kind = kinds[c];
            scratch[kept] = c;
            kept += !(kind & DROPPED);
            edges[count] = (int32_t)at;
            count += (kind & DIGIT) != digit;
            digit = kind & DIGIT;
        }
        if (digit) edges[count++] = (int32_t)stop;
        memset(scratch + kept, 0, 8);
        uint64_t key = seed ^ (uint64_t)kept;
        for (number at = 0; at < kept; at += 8) {
            uint64_t word;
            memcpy(&word, scratch + at, 8);
            key = (key ^ word) * MULTIPLIER;
            key ^= key >> 29;
        }
        key *= MULTIPLIER;
        keys[line] = key ^ key >> 32;
        start = stop + 1;
    }
    first[lines] = count / 2;
    return count / 2;
}

/* Of each known variant: five numbers about it, and for each of the numbers of its lines that mean something, eight. */
enum { SHAPE, COUNT, WIDTH, NAMED, TRAITS, ABOUT };
enum { LOOSE = 1, STEPLESS = 2, TIMELESS = 4 };
enum { RUN, STEP, WHO, STREAM, LENGTH, EXPONENT, BEFORE, FIXED, MEANINGS };
/* What `limits` says. */
enum { MAX_WIDTH, MAX_DIGITS, MAX_STEP, OF_NAME, OF_SHAPE, OF_WRITER, OF_SIZE };

/* What the lines of known variants say: see `columns.read`. Lines whose numbers are not those of their variant go into
   `wrong`, and how many these are into `wrongs`. Returns the number of the others. */
number read_columns(const byte *text, number size, const int32_t *edges, const number *first, number lines,
                    const number *variants, number known, const number *about, const number *meanings,
                    const double *seconds, const number *limits, number *found, number *variant_of, number *steps,
                    double *times, number *who, number *lanes, number *wrong, number *wrongs) {
    number done = 0, others = 0;
    for (number line = 0; line < lines; line++) {
        number variant = variants[line];
        if (variant < 0) continue;
        if (variant >= known) return -1;
        const number *own = about + variant * ABOUT;
        number begin = first[line], end = first[line + 1];
        int odd = own[TRAITS] & LOOSE ? end - begin < own[COUNT] : end - begin != own[COUNT];
        uint64_t step = 0, writer = 0, stream = 0, length = 0;
        double time = 0;
        for (number column = 0; column < own[WIDTH] && !odd; column++) {
            const number *meaning = meanings + (variant * limits[MAX_WIDTH] + column) * MEANINGS;
            number run = meaning[RUN] + (meaning[RUN] < 0 ? end : begin);
            if (run < begin || run >= end || edges[2 * run + 1] > size) return -1;
            number from = edges[2 * run], to = edges[2 * run + 1];
            if (to - from > limits[MAX_DIGITS]) {
                odd = 1;
                break;
            }
            uint64_t value = 0;
            for (number at = from; at < to; at++) value = value * 10 + (uint64_t)(text[at] - '0');
            step += value * (uint64_t)meaning[STEP];
            writer += value * (uint64_t)meaning[WHO];
            stream += value * (uint64_t)meaning[STREAM];
            length += value * (uint64_t)meaning[EXPONENT];
            if (value > 0) length += (uint64_t)(to - from) * (uint64_t)meaning[LENGTH];
            time += (double)value * seconds[variant * limits[MAX_WIDTH] + column];
            if (meaning[FIXED]) {
                uint64_t before = 0;
                for (number at = from < 8 ? 0 : from - 8; at < from; at++)
                    before = before >> 8 | (uint64_t)text[at] << 56;
                odd = ((before ^ (uint64_t)meaning[BEFORE]) & (uint64_t)meaning[FIXED]) != 0;
            }
        }
        if (odd || step >= (uint64_t)limits[MAX_STEP]) {
            wrong[others++] = line;
            continue;
        }
        found[done] = line;
        variant_of[done] = variant;
        steps[done] = own[TRAITS] & STEPLESS ? -1 : (number)step;
        times[done] = own[TRAITS] & TIMELESS ? 0.0 / 0.0 : time;
        who[done] = (number)(stream + (uint64_t)own[NAMED] * (uint64_t)limits[OF_NAME]);
        lanes[done] = (number)((uint64_t)own[SHAPE] * (uint64_t)limits[OF_SHAPE] + writer * (uint64_t)limits[OF_WRITER] +
                               length * (uint64_t)limits[OF_SIZE]);
        done++;
    }
    *wrongs = others;
    return done;
}

/* What may stand between two pieces of bytes that a program printed as text: `\\xd3]g5|\\x81`. */
static int separates(byte c) {
    return !is_digit(c) && !is_letter(c) && c != ' ' && (c < 9 || c > 13) && c != '\'' && c != '"' && c != '\\';
}

static int is_escaped_byte(const byte *text, number at, number size) {
    return size - at > 3 && text[at] == '\\' && text[at + 1] == 'x' && hexadecimal(text[at + 2]) >= 0 &&
           hexadecimal(text[at + 3]) >= 0;
}

/* Whether an escaped byte follows at once, or behind two separators. */
static int is_before_byte(const byte *text, number at, number size) {
    for (number last = at + 2; at < last && at < size && separates(text[at]); at++) continue;
    return is_escaped_byte(text, at, size);
}

/* A text in which words that are not named, identifiers, escapes, what stands among escaped bytes, and what is not ASCII are
   0xff: see `columns.Mask`. Returns the size. */
number masked(const byte *text, number size, const byte *named, int bits, byte *out, number room) {
    if (room < size) return -1;
    memcpy(out, text, (size_t)size);
    int after_named = 0; /* the token before ended with a word that is named */
    number bytes_end = -3; /* where the last token among escaped bytes ended */
    for (number at = 0; at < size;) {
        if (!is_digit(text[at]) && !is_letter(text[at])) {
            out[at] |= text[at] < 0x80 ? 0 : 0xff;
            at++;
            continue;
        }
        number start = at, runs = 0;
        int told = after_named && is_digit(text[at]), foreign = 0, exponent = 1;
        while (at < size && (is_digit(text[at]) || is_letter(text[at]))) {
            number from = at;
            after_named = 0;
            runs++;
            if (is_digit(text[at])) {
                while (at < size && is_digit(text[at])) at++;
                continue;
            }
            uint64_t word = 0;
            int small = 1;
            for (; at < size && is_letter(text[at]); at++) {
                byte letter = text[at] | 32;
                if (at - from < 8) word |= (uint64_t)letter << 8 * (at - from);
                small &= letter <= 'f';
            }
            foreign |= !small || at - from > 8;
            exponent &= word == 'e';
            after_named = named[word * MULTIPLIER >> (64 - bits)] &&
                          !(at + 1 < size && text[at] == '_' && is_digit(text[at + 1]));
        }
        int hidden = runs == 1 ? is_letter(text[start]) && !after_named && at - start > 2
                               : !told && (runs > 3 || (!foreign && !exponent && at - start >= 6));
        int in_bytes = start - bytes_end <= 2;
        for (number between = bytes_end; in_bytes && between < start; between++) in_bytes = separates(text[between]);
        in_bytes |= is_before_byte(text, at, size);
        if (start > 0 && text[start - 1] == '\\') { /* an escape */
            in_bytes |= is_escaped_byte(text, start - 1, size);
            hidden = 1;
            start--;
        }
        if (in_bytes) {
            hidden = 1;
            bytes_end = at;
        }
        if (hidden) memset(out + start, 0xff, (size_t)(at - start));
    }
    return size;
}
