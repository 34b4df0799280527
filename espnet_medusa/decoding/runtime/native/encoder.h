// Encoder layers over all frames of several utterances.
//
// A thread computes a block of rows through several operations while they are in its cache. Of the
// results between them, only queries, packed keys and values, and attention are written to memory.
#pragma once

#include "linear.h"
#include "cross_attention.h"

// An encoder layer's weights.
struct EncoderLayer {
    Norm self_norm, feed_forward_norm;
    Linear queries_keys_values, self_output, inner, outer;
};

// Hidden states (utterances, frames, heads * head size).
struct Frames {
    int64_t utterances, frames, heads, head_size;
    const int64_t* lengths;  // (utterances) frames without padding
    const float* mask;       // (utterances, frames), added to attention logits; or null
    int64_t threads;

    long rows() const { return utterances * frames; }
    long width() const { return heads * head_size; }
    long heads_in_all() const { return utterances * heads; }
};

// Maximum rows of a block: their integers fit in the second-level cache.
constexpr long BLOCK_ROWS = 3 * PANEL;

// Rows of a block: equal shares of the threads, in whole panels.
inline long block_rows(long rows, long threads) {
    return std::clamp(round_up((rows + threads - 1) / threads, PANEL), (long)PANEL, BLOCK_ROWS);
}

// A block's packed rows: integers with their scales, or bfloat16.
struct Block {
    char* values;
    float* scales;
    float* normalized;  // (widest) one row

    // Bytes of one row; seldom a power of two, as in QuantizedRows.
    template <class Type>
    static long stride_of(long steps) {
        return (steps + 1) * STEP_ROW<Type> * sizeof(typename Type::Row);
    }
    static long stride(const Linear& linear) {
        const long steps = linear.steps();
        return linear.is_bfloat16() ? stride_of<Bfloat16>(steps) : stride_of<Bytes>(steps);
    }
    static long widest_stride(long widest) {
        return stride_of<Bfloat16>(round_up(widest, PANEL) / PANEL);
    }
    Block(Scratch& scratch, long widest)
        : values(scratch.take<char>(BLOCK_ROWS * widest_stride(widest))),
          scales(scratch.take<float>(BLOCK_ROWS)),
          normalized(scratch.take<float>(widest)) {}
};

template <class Type>
void multiply_panels(
    const Linear& linear, const Block& block, long count, const float* residual, float* to) {
    const long steps = linear.steps(), size = linear.outputs, stride = Block::stride(linear);
    Tiles tiles(count);
    alignas(64) typename Type::Sum sums[PANEL * PANEL];
    for (long column = 0; column < size; column += PANEL) {
        const char* blocks = linear.blocks + column * steps * STEP_BYTES;
        for (long row = 0; row < count; row += PANEL) {
            const int in_panel = std::min<long>(count - row, PANEL);
            const Rows rows{block.values + row * stride, stride, in_panel};
            multiply<Type>(rows, blocks, steps, steps, sums);
            finish(linear, column, sums, block.scales + row, in_panel,
                   residual ? residual + row * size : nullptr, to + row * size);
        }
    }
}

// Multiplies up to BLOCK_ROWS rows, `stride` numbers apart, to (count, outputs); one thread.
inline void multiply_block(
    const Linear& linear, const Norm* norm, const float* from, long stride, long count,
    const Block& block, const float* residual, float* to) {
    const long size = linear.inputs, block_stride = Block::stride(linear);
    for (long row = 0; row < count; ++row, from += stride) {
        const float* numbers = from;
        if (norm != nullptr) {
            normalize(from, size, *norm, block.normalized);
            numbers = block.normalized;
        }
        char* place = block.values + row * block_stride;
        if (linear.is_bfloat16())
            round_row<Bfloat16>(numbers, size, 1, (Bfloat16::Row*)place);
        else
            quantize(numbers, size, (Bytes::Row*)place, block.scales + row);
    }
    if (linear.is_bfloat16())
        multiply_panels<Bfloat16>(linear, block, count, residual, to);
    else
        multiply_panels<Bytes>(linear, block, count, residual, to);
}

// Calls `visit(first row, number of rows)` for all blocks; threads share the blocks.
template <class Visit>
void each_block(long rows, long threads, Visit visit) {
    const long size = block_rows(rows, threads);
#pragma omp for schedule(dynamic)
    for (long row = 0; row < rows; row += size) visit(row, std::min(size, rows - row));
}

// Projects rows (utterances, frames, D), after `norm` unless it is null, to queries (rows, D), keys
// and values; without `queries`, the product has keys and values only. The thread that computes a
// block also packs its keys and values, while they are in the thread's cache.
inline void project_frames(
    const Linear& linear, const Norm* norm, const Frames& frames, const float* from, float* queries,
    char* packed) {
    const long width = frames.width(), size = frames.head_size, count = frames.frames;
    const long most = block_rows(frames.rows(), frames.threads), outputs = linear.outputs;
    static thread_local Scratch scratch;
    scratch.reset();
    const Block block(scratch, linear.inputs);
    float* joined = scratch.take<float>(BLOCK_ROWS * outputs);
    const float* keys = joined + (queries ? width : 0);
#pragma omp for schedule(dynamic) collapse(2)
    for (long utterance = 0; utterance < frames.utterances; ++utterance)
        for (long first = 0; first < count; first += most) {
            const long in_block = std::min(most, count - first), row = utterance * count + first;
            multiply_block(linear, norm, from + row * linear.inputs, linear.inputs, in_block, block,
                           nullptr, joined);
            for (long at = 0; queries && at < in_block; ++at)
                std::copy_n(joined + at * outputs, width, queries + (row + at) * width);
            for (long head = 0; head < frames.heads; ++head)
                pack_head({keys + head * size, outputs, width, size}, first, in_block, count,
                          packed + (utterance * frames.heads + head) *
                                       CrossKeysValues::bytes_per_head(count, size));
        }
}

// Replaces queries (rows, heads, head size) by the attention's result.
inline void attend_all_frames(const Frames& frames, const char* packed, float* queries) {
    constexpr long TOGETHER = 8;  // panels of one head, while its keys and values are in the cache
    const long width = frames.width(), size = frames.head_size, count = frames.frames;
    const long chunks = (count + TOGETHER * PANEL - 1) / (TOGETHER * PANEL);
    static thread_local Scratch scratch;
#pragma omp for schedule(dynamic) collapse(2)
    for (long head = 0; head < frames.heads_in_all(); ++head)
        for (long chunk = 0; chunk < chunks; ++chunk) {
            const long utterance = head / frames.heads, length = frames.lengths[utterance];
            const PackedHead of_head(
                packed + head * CrossKeysValues::bytes_per_head(count, size), count, size);
            const float* mask = frames.mask ? frames.mask + utterance * count : nullptr;
            float* place = queries + utterance * count * width + head % frames.heads * size;
            const long end = std::min((chunk + 1) * TOGETHER * PANEL, count);
            for (long row = chunk * TOGETHER * PANEL; row < end; row += PANEL) {
                float* of_panel = place + row * width;
                const Queries panel(of_panel, std::min<long>(PANEL, end - row), width, size,
                                    CrossKeysValues::padded(length), scratch);
                attend_frames(panel, of_head, length, mask, of_panel);
            }
        }
}

// Computes a layer for (rows, D) in place; `queries` is working memory for (rows, D).
inline void encode_layer(
    const EncoderLayer& layer, const Frames& frames, float* hidden, float* queries, char* packed) {
    const long width = frames.width(), rows = frames.rows(), inner_size = layer.inner.outputs;
    const long widest = std::max(width, inner_size);
    static thread_local Scratch scratch;
    scratch.reset();
    const Block block(scratch, widest);
    float* inner = scratch.take<float>(BLOCK_ROWS * inner_size);

    project_frames(
        layer.queries_keys_values, &layer.self_norm, frames, hidden, queries, packed);
    attend_all_frames(frames, packed, queries);
    each_block(rows, frames.threads, [&](long row, long count) {
        float* of_block = hidden + row * width;
        multiply_block(layer.self_output, nullptr, queries + row * width, width, count, block,
                       of_block, of_block);
        multiply_block(layer.inner, &layer.feed_forward_norm, of_block, width, count, block,
                       nullptr, inner);
        multiply_block(layer.outer, nullptr, inner, inner_size, count, block, of_block, of_block);
    });
}
