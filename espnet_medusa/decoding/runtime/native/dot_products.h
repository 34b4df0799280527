// Dot products of one row with 16 columns, for each number type.
//
// A 32-bit lane has neighbors in depth (the summed dimension): 4 8-bit integers, 2 words or 2
// bfloat16. A type defines the row format for this processor (Row), and prepares columns once for
// several rows. PLACES vectors of columns are stored in one.
#pragma once

#include "vectors.h"

// Unsigned rows with signed columns; sums are exact. Without byte products, bytes are widened to
// words: AVX2's instruction for bytes adds pairs of products in 16 bits, which would overflow.
struct Bytes {
    using Sum = int32_t;
    using Sums = Integers;
    static constexpr int NEIGHBORS = 4, PLACES = 1;
#ifdef WITH_BYTE_PRODUCTS
    using Row = uint8_t;
    using Columns = Integers;
    static constexpr int MOST_ROWS = REGISTERS > 8 ? 11 : 6;

    static void store_row(Row* to, Integers values) { store_bytes(to, values); }
    static Columns prepare(Integers columns) { return columns; }
    static Sums add(Sums sums, const Row* row, const Columns& columns) {
        return add_byte_products(sums, repeat(row), columns);
    }
#else
    using Row = uint16_t;
    struct Columns {
        Integers even, odd;
    };
    static constexpr int MOST_ROWS = 5;

    static void store_row(Row* to, Integers values) { store_separated_words(to, values); }
    static Columns prepare(Integers columns) { return {even_bytes(columns), odd_bytes(columns)}; }
    static Sums add(Sums sums, const Row* row, const Columns& columns) {
        sums = add_word_products(sums, repeat(row), columns.even);
        return add_word_products(sums, repeat(row + 2), columns.odd);
    }
#endif
};

// Bytes that are multiples of 16, so that only their upper halves are stored. A stored vector has
// two vectors of columns, the first one in the lower halves.
struct Nibbles : Bytes {
    static constexpr int PLACES = 2;
};

// Signed 16-bit integers with one scale per row and column. Sums are exact and fit in 32 bits: the
// absolute values of a row add up to MOST_OF_ROW at most, and no column exceeds LARGEST_IN_COLUMN.
struct Words {
    using Sum = int32_t;
    using Sums = Integers;
    using Row = int16_t;
    using Columns = Integers;
    static constexpr bool SCALED = true;
    static constexpr int NEIGHBORS = 2, PLACES = 1;
    static constexpr float LARGEST_IN_ROW = 32767, LARGEST_IN_COLUMN = 4096;
    static constexpr float MOST_OF_ROW = 0x1p31f / LARGEST_IN_COLUMN;
#ifdef WITH_BYTE_PRODUCTS
    static constexpr int MOST_ROWS = REGISTERS > 8 ? 11 : 6;
#else
    static constexpr int MOST_ROWS = 5;
#endif

    static void store_row(Row* to, Floats values) { store_words(to, to_integers(values)); }
    static void store_column(uint16_t* to, Floats values) { store_row((Row*)to, values); }
    static Integers to_pairs(Floats even, Floats odd) {
        return (to_integers(even) & constant(0xffff)) | (to_integers(odd) << 16);
    }
    static Columns prepare(Integers columns) { return columns; }
    static Sums add(Sums sums, const Row* row, const Columns& columns) {
        return add_word_products(sums, repeat(row), columns);
    }
};

struct Bfloat16 {
    using Sum = float;
    using Sums = Floats;
    static constexpr bool SCALED = false;
    static constexpr int NEIGHBORS = 2, PLACES = 1;

    static void store_column(uint16_t* to, Floats values) { store_bfloat16(to, values); }
    static Integers to_pairs(Floats even, Floats odd) {
        const Integers low = (round_upper_half(even) >> 16) & constant(0xffff);
        return low | upper_half(round_upper_half(odd));
    }
#ifdef WITH_BFLOAT16_PRODUCTS
    using Row = uint16_t;
    using Columns = Integers;
    static constexpr int MOST_ROWS = 11;

    static void store_row(Row* to, Floats values) { store_bfloat16(to, values); }
    static Columns prepare(Integers columns) { return columns; }
    static Sums add(Sums sums, const Row* row, const Columns& columns) {
        return add_bfloat16_products(sums, repeat(row), columns);
    }
#else
    using Row = float;
    struct Columns {
        Floats even, odd;
    };
    static constexpr int MOST_ROWS = REGISTERS > 8 ? 11 : 5;

    static void store_row(Row* to, Floats values) { store(to, round_to_bfloat16(values)); }
    static Columns prepare(Integers columns) {
        return {as_floats(columns << 16), as_floats(upper_half(columns))};
    }
    static Sums add(Sums sums, const Row* row, const Columns& columns) {
        sums = multiply_add(constant(row[0]), columns.even, sums);
        return multiply_add(constant(row[1]), columns.odd, sums);
    }
#endif
};

// The vector of columns at `place` of the PLACES in a stored one.
template <class Type>
Integers columns_at(int place, Integers stored) {
    if constexpr (Type::PLACES == 1) return stored;
    return (place ? stored : stored << 4) & constant(int(0xf0f0f0f0));
}

// Numbers of attention. Without bfloat16 instructions, words are faster and have smaller errors.
#ifdef WITH_BFLOAT16_PRODUCTS
using Number16 = Bfloat16;
#else
using Number16 = Words;
#endif
