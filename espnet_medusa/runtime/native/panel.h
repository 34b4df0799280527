// Products of a few rows with a panel of 32 columns: AMX tiles, or registers where there are none.
//
// Weights, keys and values are laid out in blocks of 16 columns: for every STEP_BYTES of depth 16
// rows of 64 bytes, in which a column has 4 neighbours in depth (8-bit integers) or 2 (bfloat16).
// That is what a tile of AMX's right-hand side and 16 lanes of dot products look like.
#pragma once

#include "dot_products.h"

#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define WITH_TILES
#endif

constexpr int TILE = 16;         // rows, and columns, of a tile
constexpr int PANEL = 2 * TILE;  // rows, and columns, that are multiplied at a time
constexpr int STEP_BYTES = 64;   // of depth: 64 8-bit integers, 32 bfloat16
constexpr int BLOCK_BYTES = TILE * STEP_BYTES;

// Numbers of a row that meet a step of columns.
template <class Type>
constexpr long STEP_ROW = TILE * Type::NEIGHBOURS;

// Left-hand rows: `stride` bytes from one to the next; readable up to a multiple of TILE rows.
struct Rows {
    const void* values;
    long stride;
    int count;

    const char* at(long row) const { return static_cast<const char*>(values) + row * stride; }
    Rows from(int row) const { return {at(row), stride, std::min(count - row, PANEL)}; }
};

#ifdef WITH_TILES

// All that was written is in memory: GCC 12's tile intrinsics do not say what they read.
inline void finish_writing() { asm volatile("" ::: "memory"); }

// Tiles 0-3: sums; 4, 5: rows; 6, 7: columns. Alive while a thread multiplies.
class Tiles {
  public:
    explicit Tiles(int rows) {
        struct alignas(64) {
            uint8_t palette = 1, start_row = 0, reserved[14] = {};
            uint16_t row_bytes[16] = {};
            uint8_t rows[16] = {};
        } shape;
        for (int tile = 0; tile < 8; ++tile) {
            shape.row_bytes[tile] = STEP_BYTES;
            // Fewer rows are multiplied faster.
            shape.rows[tile] = tile < 6 ? std::clamp(rows, 1, TILE) : TILE;
        }
        finish_writing();
        _tile_loadconfig(&shape);
    }
    ~Tiles() { _tile_release(); }
};

template <class Type>
inline void multiply_tiles_top() {
    if constexpr (std::is_same_v<Type, Bytes>) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
    } else {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
}

template <class Type>
inline void multiply_tiles_bottom() {
    if constexpr (std::is_same_v<Type, Bytes>) {
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    } else {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

// sums (rows, 32) = rows x two blocks of columns, the first `steps` of `depth` steps.
template <class Type>
void multiply(
    const Rows& rows, const char* blocks, long depth, long steps, typename Type::Sum* sums) {
    const char* second = blocks + depth * BLOCK_BYTES;
    constexpr long sum_stride = PANEL * sizeof(*sums);
    const bool both = rows.count > TILE;
    finish_writing();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long step = 0; step < steps; ++step) {
        _tile_loadd(6, blocks + step * BLOCK_BYTES, STEP_BYTES);
        _tile_loadd(7, second + step * BLOCK_BYTES, STEP_BYTES);
        _tile_loadd(4, rows.at(0) + step * STEP_BYTES, rows.stride);
        multiply_tiles_top<Type>();
        if (both) {
            _tile_loadd(5, rows.at(TILE) + step * STEP_BYTES, rows.stride);
            multiply_tiles_bottom<Type>();
        }
    }
    _tile_stored(0, sums, sum_stride);
    _tile_stored(1, sums + TILE, sum_stride);
    if (both) {
        _tile_stored(2, sums + TILE * PANEL, sum_stride);
        _tile_stored(3, sums + TILE * PANEL + TILE, sum_stride);
    }
}

#else

struct Tiles {
    explicit Tiles(int) {}
};

// COUNT rows with one block of columns: a vector of sums for each row. Meanwhile `next` comes nearer.
template <class Type, int COUNT>
void multiply_rows(
    const Rows& rows, const char* block, const char* next, long steps,
    typename Type::Sum* sums) {
    typename Type::Sums total[COUNT];
    for (int row = 0; row < COUNT; ++row) total[row] = constant(typename Type::Sum(0));
    for (long place = 0; place < steps * TILE; ++place) {
        _mm_prefetch(next + place * STEP_BYTES, _MM_HINT_T0);
        const auto columns = Type::prepare(load((const int32_t*)block + place * TILE));
        for (int row = 0; row < COUNT; ++row) {
            const auto* values = (const typename Type::Row*)rows.at(row);
            total[row] = Type::add(total[row], values + place * Type::NEIGHBOURS, columns);
        }
    }
    for (int row = 0; row < COUNT; ++row) store(sums + row * PANEL, total[row]);
}

// The first `count` rows, MOST_ROWS or fewer, all at a time: as many sums as registers hold, and
// enough to hide the product's latency.
template <class Type, int COUNT = Type::MOST_ROWS>
void multiply_few(
    const Rows& rows, int count, const char* block, const char* next, long steps,
    typename Type::Sum* sums) {
    if (count == COUNT)
        multiply_rows<Type, COUNT>(rows, block, next, steps, sums);
    else if constexpr (COUNT > 1)
        multiply_few<Type, COUNT - 1>(rows, count, block, next, steps, sums);
}

template <class Type>
void multiply(
    const Rows& rows, const char* blocks, long depth, long steps, typename Type::Sum* sums) {
    for (int half = 0; half < 2; ++half) {
        const char* block = blocks + half * depth * BLOCK_BYTES;
        // Even shares: of a whole panel 11, 11 and 10.
        for (int row = 0, some; row < rows.count; row += some) {
            const int left = rows.count - row;
            const int shares = (left + Type::MOST_ROWS - 1) / Type::MOST_ROWS;
            some = (left + shares - 1) / shares;
            // What is read once is fetched ahead by the processor, but not behind a block read again.
            const bool again = row > 0 && some == left;
            const char* next = again ? block + depth * BLOCK_BYTES : block;
            multiply_few<Type>(
                rows.from(row), some, block, next, steps, sums + row * PANEL + half * TILE);
        }
    }
}

#endif
