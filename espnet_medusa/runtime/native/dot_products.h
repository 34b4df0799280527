// Dot products of one row with 16 columns, for each number type.
//
// A 32-bit lane has neighbors in depth (the summed dimension): 4 8-bit integers or 2 bfloat16. A
// type defines the row format for this processor (Row), and prepares columns once for several rows.
#pragma once

#include "vectors.h"

// Unsigned rows with signed columns; sums are exact. Without byte products, bytes are widened to
// words: AVX2's instruction for bytes adds pairs of products in 16 bits, which would overflow.
struct Bytes {
    using Sum = int32_t;
    using Sums = Integers;
    static constexpr int NEIGHBORS = 4;
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

    static void store_row(Row* to, Integers values) { store_words(to, values); }
    static Columns prepare(Integers columns) { return {even_bytes(columns), odd_bytes(columns)}; }
    static Sums add(Sums sums, const Row* row, const Columns& columns) {
        sums = add_word_products(sums, repeat(row), columns.even);
        return add_word_products(sums, repeat(row + 2), columns.odd);
    }
#endif
};

struct Bfloat16 {
    using Sum = float;
    using Sums = Floats;
    static constexpr int NEIGHBORS = 2;
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
