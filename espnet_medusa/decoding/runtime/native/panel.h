// Matrix products of a few rows with a panel of 32 columns, with AMX tiles or vector registers.
//
// Weights, keys and values are stored in blocks of 16 columns. A step is STEP_BYTES of each column,
// stored as 16 rows of 64 bytes. A row has 4 neighbors in depth (8-bit integers) or 2 (bfloat16) of
// each column. This is the layout of AMX's right-hand tiles, and of 16 lanes of dot products.
#pragma once

#include "dot_products.h"

#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
#define WITH_TILES
#endif

constexpr int TILE = 16;         // rows, and columns, of a tile
constexpr int PANEL = 2 * TILE;  // rows, and columns, of one product
constexpr int FEW_ROWS = 8;      // of bytes; more are multiplied with tiles, if there are any
constexpr int STEP_BYTES = 64;   // in depth: 64 8-bit integers or 32 bfloat16
constexpr int BLOCK_BYTES = TILE * STEP_BYTES;

// Numbers of a row in one step.
template <class Type>
constexpr long STEP_ROW = TILE * Type::NEIGHBORS;

// Left-hand rows, `stride` bytes apart; readable up to a multiple of TILE rows.
struct Rows {
    const void* values;
    long stride;
    int count;

    const char* at(long row) const { return static_cast<const char*>(values) + row * stride; }
    Rows from(int row) const { return {at(row), stride, std::min(count - row, PANEL)}; }
};

// Rounds `factor` times a row, with zeros to the end of its last step.
template <class Type>
void round_row(const float* row, long size, float factor, typename Type::Row* to) {
    const long end = round_up(size, STEP_ROW<Type>);
    for (long at = 0; at < end; at += LANES)
        Type::store_row(to + at, load(row, at, size) * constant(factor));
}

// The largest number of a row of absolute values, and their sum.
struct Amplitude {
    Floats top = constant(1e-20f), total = constant(0.0f);

    void add(Floats values) {
        top = maximum(top, values);
        total = total + values;
    }
    // Returns the scale of the row's words. Rounding adds at most 0.5 per number to their sum.
    float scale(long size) const {
        return std::max(largest(top) / Words::LARGEST_IN_ROW,
                        sum(total) / (Words::MOST_OF_ROW - size));
    }
};

// Returns the scale of a column's integers; 1 for bfloat16.
template <class Type>
float column_scale(const float* column, long size) {
    if constexpr (!Type::SCALED) return 1;
    Floats top = constant(1e-20f);
    for (long at = 0; at < size; at += LANES) top = maximum(top, absolute(load(column, at, size)));
    return largest(top) / Words::LARGEST_IN_COLUMN;
}

#ifdef WITH_TILES

// Forces writes to memory: GCC 12's tile intrinsics do not declare what they read.
inline void finish_writing() { asm volatile("" ::: "memory"); }

// The thread's tile configuration. Tiles 0-3: sums; 4, 5: rows; 6, 7: columns.
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
            // Fewer rows are faster.
            shape.rows[tile] = tile < 6 ? std::clamp(rows, 1, TILE) : TILE;
        }
        finish_writing();
        _tile_loadconfig(&shape);
    }
    ~Tiles() { _tile_release(); }
};

template <class Type>
inline void multiply_tiles_top() {
    if constexpr (std::is_base_of_v<Bytes, Type>) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
    } else {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
}

template <class Type>
inline void multiply_tiles_bottom() {
    if constexpr (std::is_base_of_v<Bytes, Type>) {
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    } else {
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

// One step of a block as a tile; `unpacked` is working memory for it.
template <class Type>
const char* tile(const char* stored, char* unpacked) {
    if constexpr (Type::PLACES == 1) return stored;
    for (int row = 0; row < TILE; ++row) {
        const auto* from = (const int32_t*)(stored + row / Type::PLACES * STEP_BYTES);
        store((int32_t*)(unpacked + row * STEP_BYTES),
              columns_at<Type>(row % Type::PLACES, load(from)));
    }
    finish_writing();
    return unpacked;
}

// sums (rows, 32) = rows x two blocks of columns, the first `steps` of `depth` steps.
template <class Type>
void multiply_tiles(
    const Rows& rows, const char* blocks, long depth, long steps, typename Type::Sum* sums) {
    constexpr long sum_stride = PANEL * sizeof(*sums), step_bytes = BLOCK_BYTES / Type::PLACES;
    const char* second = blocks + depth * step_bytes;
    alignas(64) char unpacked[2][Type::PLACES == 1 ? 1 : BLOCK_BYTES];
    const bool both = rows.count > TILE;
    finish_writing();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long step = 0; step < steps; ++step) {
        _tile_loadd(6, tile<Type>(blocks + step * step_bytes, unpacked[0]), STEP_BYTES);
        _tile_loadd(7, tile<Type>(second + step * step_bytes, unpacked[1]), STEP_BYTES);
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

#endif

// Blocks of columns that are multiplied together: their sums must fit in registers.
constexpr int BLOCKS_TOGETHER = REGISTERS > 8 ? 2 : 1;

// The cache to which a product prefetches the next columns; which one is faster depends on the
// processor (bench/NOTES.md).
#ifdef PREFETCH_TO_L2
constexpr auto PREFETCHED_TO = _MM_HINT_T1;
#else
constexpr auto PREFETCHED_TO = _MM_HINT_T0;
#endif

// Multiplies COUNT rows with BLOCKS_TOGETHER blocks of columns that are `apart` bytes apart, one
// vector of sums per row and block; prefetches `next`.
template <class Type, int COUNT>
void multiply_rows(
    const Rows& rows, const char* blocks, long apart, const char* next, long steps,
    typename Type::Sum* sums) {
    typename Type::Sums total[COUNT][BLOCKS_TOGETHER];
    for (auto& of_row : total)
        for (auto& of_block : of_row) of_block = constant(typename Type::Sum(0));
    for (long place = 0; place < steps * TILE; place += Type::PLACES) {
        Integers stored[BLOCKS_TOGETHER];
        for (int block = 0; block < BLOCKS_TOGETHER; ++block) {
            const long at = block * apart + place / Type::PLACES * STEP_BYTES;
            _mm_prefetch(next + at, PREFETCHED_TO);
            stored[block] = load((const int32_t*)(blocks + at));
        }
#pragma GCC unroll 2
        for (int one = 0; one < Type::PLACES; ++one) {
            typename Type::Columns columns[BLOCKS_TOGETHER];
            for (int block = 0; block < BLOCKS_TOGETHER; ++block)
                columns[block] = Type::prepare(columns_at<Type>(one, stored[block]));
#pragma GCC unroll 16
            for (int row = 0; row < COUNT; ++row) {
                const auto* values =
                    (const typename Type::Row*)rows.at(row) + (place + one) * Type::NEIGHBORS;
#pragma GCC unroll 2
                for (int block = 0; block < BLOCKS_TOGETHER; ++block)
                    total[row][block] = Type::add(total[row][block], values, columns[block]);
            }
        }
    }
    for (int row = 0; row < COUNT; ++row)
        for (int block = 0; block < BLOCKS_TOGETHER; ++block)
            store(sums + row * PANEL + block * TILE, total[row][block]);
}

// Multiplies the first `count` rows, at most MOST_ROWS: as many sums as fit in registers.
template <class Type, int COUNT = Type::MOST_ROWS>
void multiply_few(
    const Rows& rows, int count, const char* blocks, long apart, const char* next, long steps,
    typename Type::Sum* sums) {
    if (count == COUNT)
        multiply_rows<Type, COUNT>(rows, blocks, apart, next, steps, sums);
    else if constexpr (COUNT > 1)
        multiply_few<Type, COUNT - 1>(rows, count, blocks, apart, next, steps, sums);
}

// The same with vectors. Prefetches `following`, the blocks of the next product; null: the blocks
// after these.
template <class Type>
void multiply_vectors(
    const Rows& rows, const char* blocks, long depth, long steps, typename Type::Sum* sums,
    const char* following = nullptr) {
    const long apart = depth * BLOCK_BYTES / Type::PLACES;
    for (int first = 0; first < PANEL / TILE; first += BLOCKS_TOGETHER) {
        const char* place = blocks + first * apart;
        const bool last = first + BLOCKS_TOGETHER == PANEL / TILE;
        const char* after = last && following ? following : place + BLOCKS_TOGETHER * apart;
        // Equal shares, such as 11, 11 and 10 rows of a panel.
        for (int row = 0, size; row < rows.count; row += size) {
            const int left = rows.count - row;
            const int shares = (left + Type::MOST_ROWS - 1) / Type::MOST_ROWS;
            size = (left + shares - 1) / shares;
            // The last pass over these columns prefetches the next ones, because the processor's
            // prefetcher alone is slower (bench/NOTES.md).
            const char* next = size == left ? after : place;
            multiply_few<Type>(rows.from(row), size, place, apart, next, steps,
                               sums + row * PANEL + first * TILE);
        }
    }
}

// The same with tiles, if the processor has them, or vectors, which are faster for FEW_ROWS of
// bytes (bench/NOTES.md). The sums of bytes are the same.
template <class Type>
void multiply(
    const Rows& rows, const char* blocks, long depth, long steps, typename Type::Sum* sums,
    const char* following = nullptr) {
#ifdef WITH_TILES
    if (!std::is_base_of_v<Bytes, Type> || rows.count > FEW_ROWS)
        return multiply_tiles<Type>(rows, blocks, depth, steps, sums);
#endif
    multiply_vectors<Type>(rows, blocks, depth, steps, sums, following);
}
