/* Passes over the bytes of a block of log lines. Each also exists in numpy (see __init__.py).

   The text is untrusted. Every function returns -1 where an output does not fit into its buffer. Sums wrap around as in
   numpy, so they are unsigned. Floating-point contraction is off, so that all processors round alike. */

#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

typedef uint8_t byte;
typedef int64_t number;

static const uint64_t MULTIPLIER = 0x9E3779B97F4A7C15u;

static int is_digit(byte c) { return (byte)(c - '0') < 10; }
static int is_letter(byte c) { return (byte)((c | 32) - 'a') < 26; }

/* Return the checksum of the source that was compiled. */
uint32_t source(void) { return SOURCE; }

/* Find where lines end; return their count. */
number line_ends(const byte *text, number size, number *ends, number room) {
    number count = 0;
    const byte *at = text, *stop = text + size;
    while (at < stop && (at = memchr(at, '\n', (size_t)(stop - at))) != NULL) {
        if (count == room) return -1;
        ends[count++] = at++ - text;
    }
    return count;
}

/* Return the first place of a literal at or after `begin`; -1 if there is none. */
number find(const byte *text, number size, number begin, const byte *literal, number length) {
    if (begin < 0 || begin > size) return -1;
    const byte *at = memmem(text + begin, (size_t)(size - begin), literal, (size_t)length);
    return at == NULL ? -1 : at - text;
}

/* Copy a text; a carriage return becomes a newline, or a space before a newline. Return the size. */
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

/* Copy parts of a text, each as a line. Return the size. */
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

/* Return the value of four hexadecimal digits; -1 if they are something else. */
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
            if (code >= 0xd800 && code < 0xe000) code = 0x17f; /* half of a surrogate pair: see `selection._meant` */
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

/* Return the length of the terminal code at the beginning of a text; 0 if there is none. */
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

/* Copy a text without terminal codes and NULs, and with JSON escapes decoded if `escaped`. Return the size. */
number plain(const byte *text, number size, int escaped, byte line_break, byte *out, number room) {
    if (room < size) return -1;
    if (escaped)
        size = without_nul(out, unescaped(text, size, line_break, out));
    else
        memcpy(out, text, (size_t)size);
    return without_nul(out, without_codes(out, size));
}

/* The tables of variants (see `variants.Variants`): five numbers for each variant, and six for each of its meaningful
   numbers. */
enum { SHAPE, COUNT, WIDTH, OWNER_BITS, TRAITS, ABOUT };
enum { STEPLESS = 1, TIMELESS = 2 };
enum { PLACE, STEP, WRITER, OWNER, LENGTH, EXPONENT, MEANINGS };
/* The entries of `limits`. */
enum { MAX_WIDTH, MAX_DIGITS, MAX_STEP, BY_KNOWN, BY_SHAPE, BY_WRITER, BY_MAGNITUDE };

/* Read lines of known variants (see `columns.read`). Lines whose numbers do not fit their variant are listed in `wrong`,
   and counted in `wrongs`. Return the count of the other lines. */
number read_columns(const byte *text, number size, const int32_t *edges, const number *first, number lines,
                    const number *variants, number known, const number *about, const number *meanings,
                    const double *seconds, const number *limits, number *found, number *variant_of, number *steps,
                    double *times, number *owners, number *lanes, number *wrong, number *wrongs) {
    number done = 0, others = 0;
    for (number line = 0; line < lines; line++) {
        number variant = variants[line];
        if (variant < 0) continue;
        if (variant >= known) return -1;
        const number *own = about + variant * ABOUT;
        number begin = first[line], end = first[line + 1];
        int odd = end - begin != own[COUNT];
        uint64_t step = 0, writer = 0, owner = 0, magnitude = 0;
        double time = 0;
        for (number column = 0; column < own[WIDTH] && !odd; column++) {
            const number *meaning = meanings + (variant * limits[MAX_WIDTH] + column) * MEANINGS;
            number place = meaning[PLACE] + begin;
            if (place < begin || place >= end || edges[2 * place + 1] > size) return -1;
            number from = edges[2 * place], to = edges[2 * place + 1];
            if (to - from > limits[MAX_DIGITS]) {
                odd = 1;
                break;
            }
            uint64_t value = 0;
            for (number at = from; at < to; at++) value = value * 10 + (uint64_t)(text[at] - '0');
            step += value * (uint64_t)meaning[STEP];
            writer += value * (uint64_t)meaning[WRITER];
            owner += value * (uint64_t)meaning[OWNER];
            magnitude += value * (uint64_t)meaning[EXPONENT];
            if (value > 0) magnitude += (uint64_t)(to - from) * (uint64_t)meaning[LENGTH];
            time += (double)value * seconds[variant * limits[MAX_WIDTH] + column];
        }
        if (odd || step >= (uint64_t)limits[MAX_STEP]) {
            wrong[others++] = line;
            continue;
        }
        found[done] = line;
        variant_of[done] = variant;
        steps[done] = own[TRAITS] & STEPLESS ? -1 : (number)step;
        times[done] = own[TRAITS] & TIMELESS ? 0.0 / 0.0 : time;
        owners[done] = (number)(owner + (uint64_t)own[OWNER_BITS] * (uint64_t)limits[BY_KNOWN]);
        lanes[done] = (number)((uint64_t)own[SHAPE] * (uint64_t)limits[BY_SHAPE] + writer * (uint64_t)limits[BY_WRITER] +
                               magnitude * (uint64_t)limits[BY_MAGNITUDE]);
        done++;
    }
    *wrongs = others;
    return done;
}

/* Whether a character may separate parts of bytes that a program printed as text: `\\xd3]g5|\\x81`. */
static int separates(byte c) {
    return !is_digit(c) && !is_letter(c) && c != ' ' && (c < 9 || c > 13) && c != '\'' && c != '"' && c != '\\';
}

static int is_escaped_byte(const byte *text, number at, number size) {
    return size - at > 3 && text[at] == '\\' && text[at + 1] == 'x' && hexadecimal(text[at + 2]) >= 0 &&
           hexadecimal(text[at + 3]) >= 0;
}

/* Whether an escaped byte follows, after at most two separators. */
static int is_before_byte(const byte *text, number at, number size) {
    for (number last = at + 2; at < last && at < size && separates(text[at]); at++) continue;
    return is_escaped_byte(text, at, size);
}

/* After a known word, a token that begins with a digit is a number if it is shorter than this. */
enum { LONG = 12 };

/* Kinds of bytes. */
enum { SEPARATOR, DIGIT, LETTER, HIDDEN, END };

/* Hide identifiers of several parts such as UUIDs: hexadecimal groups of at least four characters, joined by hyphens, one
   of them with both digits and letters. */
static void hide_chains(const byte *text, number size, byte *kinds) {
    number done = 0; /* groups that begin before this place have been handled */
    const byte *hyphen;
    for (number at = 0; at < size && (hyphen = memchr(text + at, '-', (size_t)(size - at))) != NULL;) {
        number stop = hyphen - text, start = stop, groups = 0;
        at = stop + 1;
        while (start > done && hexadecimal(text[start - 1]) >= 0) start--;
        if (stop - start < 4 || (start > 0 && is_letter(text[start - 1]))) continue;
        int both = 0;
        for (number group = start;;) {
            int digits = 0, letters = 0;
            number end = group;
            for (; end < size && hexadecimal(text[end]) >= 0; end++) {
                digits |= is_digit(text[end]);
                letters |= is_letter(text[end]);
            }
            if (end - group < 4 || (end < size && is_letter(text[end]))) break;
            groups++;
            both |= digits & letters;
            stop = end;
            if (end == size || text[end] != '-') break;
            group = end + 1;
        }
        if (stop > at) at = stop;
        if (groups > 1 && both) memset(kinds + start, HIDDEN, (size_t)(stop - start));
        done = at;
    }
}

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "only little-endian processors are supported"
#endif

/* A run of digits, of letters or of hidden bytes. `name` is the number of a known word, or 0. */
struct token {
    uint64_t word; /* its first eight letters */
    number start, stop;
    byte kind, name;
};

/* Return where a run of bytes of one kind ends. Eight `END` follow the kinds of the text. */
static number run_end(const byte *kinds, number at, byte kind) {
    for (;; at += 8) {
        uint64_t others;
        memcpy(&others, kinds + at, 8);
        others ^= kind * (uint64_t)0x0101010101010101;
        if (others) return at + (__builtin_ctzll(others) >> 3);
    }
}

/* Whether a part of a text has only digits and the letters a to f, at most eight letters in a row, and is not a float like
   1e9. */
static int is_hexadecimal(const byte *text, number at, number stop) {
    int exponent = 1;
    for (number letters = 0; at < stop; at++) {
        letters = is_digit(text[at]) ? 0 : letters + 1;
        if (letters > 8 || hexadecimal(text[at]) < 0) return 0;
        exponent &= !letters || ((text[at] | 32) == 'e' && letters == 1);
    }
    return !exponent;
}

/* Whether the runs of a token are an identifier: a hexadecimal number, or a mix of digits and letters. 15T01, 2e05 and
   9Nov2026 are not. */
static int is_identifier(const byte *text, const struct token *runs, number count) {
    if (count > 3) return 1;
    if (count == 3 && !runs[0].name && !runs[1].name && !runs[2].name && runs[1].word != 'e' && runs[1].word != 't') return 1;
    number start = runs[0].start, stop = runs[count - 1].stop;
    return stop - start >= 3 && is_hexadecimal(text, start, stop);
}

/* Find the tokens of a line; return their count. Hidden are unknown words, identifiers, escapes and printed bytes (see
   `columns.Mask`). `known` has the number of each known word, by the first bits of its hash. */
static number tokenised(const byte *text, number start, number stop, number size, const byte *kinds, const byte *known,
                        int bits, int bytes, struct token *tokens) {
    number count = 0, bytes_end = start - 3; /* end of the last token among printed bytes */
    number chain = 0, chain_end = start - 2; /* first token of those joined by + or / (base64), and the end of the last */
    int after_known = 0, opaque = 0; /* the previous token ends with a known word; the chain has an identifier */
    for (number at = start; (at = run_end(kinds, at, SEPARATOR)) < stop;) {
        number begin = at, first = count;
        if (kinds[at] == HIDDEN) {
            at = run_end(kinds, at, HIDDEN);
            tokens[count++] = (struct token){.start = begin, .stop = at, .kind = HIDDEN};
            continue;
        }
        int expected = after_known && kinds[at] == DIGIT;
        while (kinds[at] == DIGIT || kinds[at] == LETTER) {
            struct token *token = tokens + count++;
            token->start = at;
            token->kind = kinds[at];
            token->name = 0;
            token->word = 0;
            if (token->kind == LETTER) {
                memcpy(&token->word, text + at, size - at < 8 ? (size_t)(size - at) : 8);
                at = run_end(kinds, at, LETTER);
                token->word |= 0x2020202020202020u;
                if (at - token->start < 8) token->word &= ((uint64_t)1 << 8 * (at - token->start)) - 1;
                /* `batch_7` is a name. A known word whose number matters is not joined to it by an underscore. */
                if (!(at + 1 < size && text[at] == '_' && is_digit(text[at + 1])))
                    token->name = known[token->word * MULTIPLIER >> (64 - bits)];
            } else {
                at = run_end(kinds, at, DIGIT);
            }
            token->stop = at;
        }
        struct token *last = tokens + count - 1;
        number runs = count - first;
        expected &= at - begin < LONG;
        after_known = last->kind == LETTER && last->name && last->stop - last->start > 2;
        int identifier = runs > 1 && !expected && is_identifier(text, tokens + first, runs);
        int hidden = runs == 1 ? last->kind == LETTER && !last->name && at - begin > 2 : identifier;
        int apart = expected || begin - 1 != chain_end || (text[chain_end] != '/' && text[chain_end] != '+');
        opaque = identifier | (opaque & !apart);
        chain_end = at;
        int escape = begin > start && text[begin - 1] == '\\';
        if (bytes) {
            int in_bytes = begin - bytes_end <= 2;
            for (number place = bytes_end; in_bytes && place < begin; place++) in_bytes = separates(text[place]);
            in_bytes |= is_before_byte(text, at, size) | (escape && is_escaped_byte(text, begin - 1, size));
            hidden |= in_bytes;
            if (in_bytes) bytes_end = at;
        }
        if (escape) {
            hidden = 1;
            begin--;
        }
        if (hidden) {
            tokens[first].kind = HIDDEN;
            tokens[first].start = begin;
            tokens[first].stop = at;
            count = first + 1;
        }
        if (apart) chain = expected ? count : first;
        for (; opaque && chain < count; chain++)
            if (!tokens[chain].name) tokens[chain].kind = HIDDEN;
    }
    return count;
}

/* Whether a text may have printed bytes. */
static int has_bytes(const byte *text, number size) {
    const byte *at = text, *stop = text + size;
    while (at < stop && (at = memchr(at, '\\', (size_t)(stop - at))) != NULL)
        if (++at < stop && *at == 'x') return 1;
    return 0;
}

/* Find the kind of each byte of a text. */
static int fill_kinds(const byte *text, number size, byte *kinds, number room) {
    if (room < size + 8) return -1;
    for (number at = 0; at < size; at++)
        kinds[at] = (byte)(is_digit(text[at]) * DIGIT + is_letter(text[at]) * LETTER + (text[at] >> 7) * HIDDEN);
    memset(kinds + size, END, 8);
    hide_chains(text, size, kinds);
    return 0;
}

/* Copy a text with 0xff for each hidden byte; return the size. `tokens` has room for the longest line, `kinds` for eight
   bytes more than the text. */
number masked(const byte *text, number size, const byte *known, int bits, byte *kinds, number room, struct token *tokens,
              number longest, byte *out) {
    if (fill_kinds(text, size, kinds, room) < 0) return -1;
    int bytes = has_bytes(text, size);
    memcpy(out, text, (size_t)size);
    for (number start = 0; start < size;) {
        const byte *end = memchr(text + start, '\n', (size_t)(size - start));
        number stop = end == NULL ? size : end - text;
        if (stop - start > longest) return -1;
        number count = tokenised(text, start, stop, size, kinds, known, bits, bytes, tokens);
        for (number place = 0; place < count; place++)
            if (tokens[place].kind == HIDDEN)
                memset(out + tokens[place].start, 0xff, (size_t)(tokens[place].stop - tokens[place].start));
        start = stop + 1;
    }
    return size;
}

enum { SET = 4, WORDS = 96, ORDERS = 64 * SET - WORDS, FAR = 6, NEAR = 3 };
static const uint64_t AFTER_NUMBER = 1, AFTER_HIDDEN = 2;

static uint64_t mixed(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * MULTIPLIER;
    return hash ^ hash >> 29;
}

static void put(uint64_t *set, uint64_t bit) { set[bit >> 6] |= (uint64_t)1 << (bit & 63); }

/* Return the count of numbers in a text, and for each line

   - `keys`: a hash of its outline, in which all numbers are alike, and so is everything hidden. Known words stay where a
     number follows them.
   - `sets`: 256 bits for the other known words: which there are, and which follows which.
   - `first`: the index of its first number. One more entry has the count of all numbers.

   `edges` gets the begin and the end of each number in turn. `scratch` has room for the longest line; for the other
   arguments see `masked`. */
number outlined(const byte *text, number size, const number *ends, number lines, const byte *known, int bits,
                uint64_t seed, byte *kinds, number room, struct token *tokens, byte *scratch, number longest,
                uint64_t *keys, uint64_t *sets, number *first, int32_t *edges, number most) {
    byte repeats[256] = {0};
    number start = 0, count = 0;
    for (const char *c = " =.#>*_~-"; *c; c++) repeats[(byte)*c] = 1;
    if (size > INT32_MAX || fill_kinds(text, size, kinds, room) < 0) return -1;
    int bytes = has_bytes(text, size);
    for (number line = 0; line < lines; line++) {
        number stop = ends[line];
        if (stop < start || stop > size || stop - start > longest - 8 || stop - start > most - count - 2) return -1;
        number all = tokenised(text, start, stop, size, kinds, known, bits, bytes, tokens);
        number kept = 0, behind = -1; /* end of the last hidden byte, if only separators follow */
        uint64_t before = 0, *set = sets + line * SET;
        memset(set, 0, SET * sizeof *set);
        put(set, 0); /* bit 0 is no word; it keeps the set from being empty */
        first[line] = count / 2;
        for (number place = 0, at = start;; place++) {
            const struct token *token = tokens + place;
            for (number end = place < all ? token->start : stop; at < end; at++) {
                byte c = text[at];
                if (!(c == ' ' && behind == kept) && !(repeats[c] && kept > 0 && scratch[kept - 1] == c)) scratch[kept++] = c;
            }
            if (place == all) break;
            number length = token->stop - token->start;
            at = token->stop;
            if (token->kind == DIGIT) {
                edges[count++] = (int32_t)token->start;
                edges[count++] = (int32_t)at;
                scratch[kept++] = '0';
                behind = -1;
                before = AFTER_NUMBER;
                continue;
            }
            if (token->kind == LETTER && (token->name || length < 2)) {
                int joined = place > 0 && token[-1].kind == DIGIT && token[-1].stop == token->start;
                int counted = place + 1 < all && token[1].kind == DIGIT && token[1].start - at <= FAR;
                if (counted || (joined && length < 3)) {
                    memcpy(scratch + kept, text + token->start, (size_t)length);
                    kept += length;
                    behind = -1;
                    before = token->word;
                    continue;
                }
                if (length > 2) {
                    put(set, token->name);
                    byte beside = token->start > start ? text[token->start - 1] : 0;
                    put(set, mixed(mixed(before, beside), token->word) % ORDERS + WORDS);
                }
            }
            before = token->name ? token->word : AFTER_HIDDEN;
            if (behind < 0 || kept - behind > NEAR) behind = kept + 1;
            scratch[behind - 1] = 0xff;
            kept = behind;
        }
        memset(scratch + kept, 0, 8);
        uint64_t key = seed ^ (uint64_t)kept;
        for (number at = 0; at < kept; at += 8) {
            uint64_t word;
            memcpy(&word, scratch + at, 8);
            key = mixed(key, word);
        }
        key *= MULTIPLIER;
        keys[line] = key ^ key >> 32;
        start = stop + 1;
    }
    first[lines] = count / 2;
    return count / 2;
}
