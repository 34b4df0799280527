// Attention to frames in bfloat16 with sums in float32: cross-attention, and the encoder's.
#pragma once

#include <cfloat>

#include "nodes.h"
#include "panel.h"

// Keys and values of all utterances' frames. Each head has panels of bfloat16: keys with frames as
// columns, then values with frames as depth.
struct Memory {
    const char* packed;  // (U, heads, bytes_per_head)
    int64_t frames;
    const float* mask;   // (U, frames), added to logits: log of the frames that a row represents,
                         // the smallest number for padding at the end; or null

    static long columns(long head_size) { return round_up(head_size, PANEL); }
    static long padded(long frames) { return round_up(frames, PANEL); }
    static long bytes_per_head(long frames, long head_size) {
        return 2 * padded(frames) * columns(head_size) * sizeof(uint16_t);
    }

    long frames_of(long utterance) const {
        long count = frames;
        if (mask != nullptr)
            while (count > 0 && mask[utterance * frames + count - 1] < -1e30f) --count;
        return count;
    }
};

// Up to PANEL queries of one head, with working memory.
struct Queries {
    const float* values;  // (count, stride)
    int count;
    long stride, size;
    Bfloat16::Row* rounded;  // (PANEL, columns)
    float* scores;           // (padded / PANEL, PANEL queries, PANEL frames)
    Bfloat16::Row* weights;  // (PANEL, weight_stride)
    long weight_stride;  // seldom a power of two, as in QuantizedRows

    Queries(const float* values, int count, long stride, long size, long padded, Scratch& scratch)
        : values(values), count(count), stride(stride), size(size),
          weight_stride(padded + STEP_BYTES / sizeof(Bfloat16::Row)) {
        const long of_rounded = PANEL * Memory::columns(size);
        scratch.reset(
            Scratch::bytes_of<Bfloat16::Row>(of_rounded) +
            Scratch::bytes_of<float>(PANEL * padded) +
            Scratch::bytes_of<Bfloat16::Row>(PANEL * weight_stride));
        rounded = scratch.take<Bfloat16::Row>(of_rounded);
        scores = scratch.take<float>(PANEL * padded);
        weights = scratch.take<Bfloat16::Row>(PANEL * weight_stride);
    }
};

// Rounds scaled queries to bfloat16, with zeros after the head's size.
inline Rows round_queries(const Queries& queries) {
    const long columns = Memory::columns(queries.size);
    // LOG2_E: the softmax uses powers of 2.
    const Floats scale = constant(LOG2_E / std::sqrt((float)queries.size));
    for (int row = 0; row < queries.count; ++row)
        for (long at = 0; at < columns; at += LANES) {
            const Floats values = load(queries.values + row * queries.stride, at, queries.size);
            Bfloat16::store_row(queries.rounded + row * columns + at, values * scale);
        }
    return {queries.rounded, long(columns * sizeof(Bfloat16::Row)), queries.count};
}

// Turns one query's scores into weights that are not normalized, 0 after the frames. Returns their
// sum; prefetches `next`.
inline float round_weights(
    const Queries& queries, int row, long frames, const float* mask, const char* next,
    long next_bytes) {
    float* scores = queries.scores + row * PANEL;
    if (mask != nullptr)
        for (long at = 0; at < frames; at += LANES) {
            float* place = scores + at / PANEL * PANEL * PANEL + at % PANEL;
            store(place, 0, LANES, load(place) + load(mask, at, frames) * constant(LOG2_E));
        }
    Bfloat16::Row* weights = queries.weights + row * queries.weight_stride;
    auto each = [&](auto visit) {
        for (long panel = 0; panel < frames; panel += PANEL)
            for (long at = panel; at < panel + PANEL; at += LANES)
                visit(at, load(scores + panel * PANEL, at - panel, frames - panel, -INFINITY));
    };
    Floats top = constant(-FLT_MAX), total = constant(0.0f);
    each([&](long, Floats values) { top = maximum(top, values); });
    top = constant(largest(top));
    const long part = next_bytes / std::max<long>(Memory::padded(frames) / LANES, 1);
    each([&](long at, Floats values) {
        for (long byte = 0; byte < part; byte += 64)
            _mm_prefetch(next + at / LANES * part + byte, _MM_HINT_T1);
        const Floats weight = power_of_two(values - top);
        total = total + weight;
        Bfloat16::store_row(weights + at, weight);
    });
    return sum(total);
}

// Attention of one head's queries to the first `frames` of `all_frames`: (count, stride).
inline void attend_frames(
    const Queries& queries, const char* packed, long frames, long all_frames, const float* mask,
    float* to) {
    const long frame_bytes = Memory::columns(queries.size) * sizeof(uint16_t);
    const long key_steps = Memory::columns(queries.size) / PANEL;
    const long steps = Memory::padded(frames) / PANEL;
    const long all_steps = Memory::padded(all_frames) / PANEL;  // of the layout
    const char* values = packed + Memory::padded(all_frames) * frame_bytes;

    Tiles tiles(queries.count);
    const Rows rounded = round_queries(queries);
    for (long step = 0; step < steps; ++step)
        multiply<Bfloat16>(rounded, packed + step * PANEL * frame_bytes, key_steps, key_steps,
                           queries.scores + step * PANEL * PANEL);
    float scales[PANEL];
    const long share = all_steps * PANEL * frame_bytes / queries.count;
    for (int row = 0; row < queries.count; ++row) {
        const float total = round_weights(
            queries, row, frames, mask, values + row * share, share);
        scales[row] = total > 0 ? 1 / total : 0.0f;
    }
    const Rows weights{
        queries.weights, long(queries.weight_stride * sizeof(Bfloat16::Row)), queries.count};
    alignas(64) float sums[PANEL * PANEL];
    for (long begin = 0; begin < queries.size; begin += PANEL) {
        multiply<Bfloat16>(weights, values + begin * all_steps * STEP_BYTES, all_steps, steps, sums);
        for (int row = 0; row < queries.count; ++row)
            for (long at = begin; at < begin + PANEL; at += LANES) {
                const Floats sum = load(sums + row * PANEL + at - begin);
                store(to + row * queries.stride, at, queries.size, sum * constant(scales[row]));
            }
    }
}

// Computes attention (rows, heads, head size) of queries; threads share utterances and heads.
inline void attend_memory(
    const Nodes& nodes, const Memory& memory, const float* queries, float* to) {
    const long size = nodes.head_size, width = nodes.width();
    const long bytes = Memory::bytes_per_head(memory.frames, size);
    static thread_local Scratch scratch;
#pragma omp for schedule(static) collapse(2)
    for (long utterance = 0; utterance < nodes.utterances; ++utterance) {
        for (long head = 0; head < nodes.heads; ++head) {
            const char* packed = memory.packed + (utterance * nodes.heads + head) * bytes;
            const long frames = memory.frames_of(utterance), end = nodes.first_row[utterance + 1];
            const float* mask = memory.mask ? memory.mask + utterance * memory.frames : nullptr;
            for (long row = nodes.first_row[utterance]; row < end; row += PANEL) {
                const long place = row * width + head * size;
                const Queries panel(queries + place, std::min<long>(PANEL, end - row), width, size,
                                    Memory::padded(frames), scratch);
                attend_frames(panel, packed, frames, memory.frames, mask, to + place);
            }
        }
    }
}

// Packs `steps` of a key as 32-bit pairs that are TILE pairs apart.
inline void pack_key(const float* key, long size, long steps, uint32_t* to) {
    for (long step = 0; step < steps; ++step, to += TILE * TILE) {
        uint16_t rounded[PANEL];
        for (long at = 0; at < PANEL; at += LANES)
            store_bfloat16(rounded + at, load(key, step * PANEL + at, size));
        for (long pair = 0; pair < TILE; ++pair)
            std::memcpy(to + pair * TILE, rounded + 2 * pair, sizeof(*to));
    }
}

// Keys and values of one head in consecutive frames, `stride` numbers apart; a frame's value is
// `apart` numbers after its key.
struct KeysValues {
    const float* keys;
    long stride, apart, size;

    const float* key(long frame) const { return keys + frame * stride; }
    const float* value(long frame) const { return key(frame) + apart; }
};

// Packs `count` of a head's `frames` from `first`, a multiple of PANEL; adds zeros after the last
// frame.
inline void pack_head(
    const KeysValues& from, long first, long count, long frames, char* packed) {
    const long columns = Memory::columns(from.size), padded = Memory::padded(frames);
    const long steps = columns / PANEL, value_steps = padded / PANEL;
    auto* to_keys = (uint32_t*)packed;
    uint32_t* to_values = to_keys + padded * columns / 2;
    for (long place = 0; place < Memory::padded(count); place += 2) {
        const long frame = first + place, last = count - place;  // 1: there is no odd frame
        // Frames after the end are not read.
        const long even = last > 0 ? place : 0, odd = last > 1 ? place + 1 : 0;
        const long even_size = last > 0 ? from.size : 0, odd_size = last > 1 ? from.size : 0;
        uint32_t* to_key = to_keys + frame / TILE * steps * TILE * TILE + frame % TILE;
        pack_key(from.key(even), even_size, steps, to_key);
        pack_key(from.key(odd), odd_size, steps, to_key + 1);
        for (long at = 0; at < columns; at += LANES) {
            const long block = at / TILE * value_steps + frame / PANEL;
            store((int32_t*)to_values + (block * TILE + frame % PANEL / 2) * TILE,
                  to_pairs(load(from.value(even), at, even_size),
                           load(from.value(odd), at, odd_size)));
        }
    }
}
