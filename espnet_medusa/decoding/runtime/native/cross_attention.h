// Attention to frames: cross-attention, and the encoder's.
//
// Numbers have 16 bits (Number16): bfloat16 with sums in float32, or words with exact sums. Words
// have one scale per query, key and value. Weights are multiplied with the scales of values before
// they are rounded.
#pragma once

#include <cfloat>

#include "nodes.h"
#include "panel.h"

// Keys and values of all utterances' frames; PackedHead describes a head.
struct CrossKeysValues {
    const char* packed;  // (U, heads, bytes_per_head)
    int64_t frames;
    const float* mask;   // (U, frames), added to logits: log of the frames that a row represents,
                         // the smallest number for padding at the end; or null

    static long columns(long head_size) { return round_up(head_size, PANEL); }
    static long padded(long frames) { return round_up(frames, PANEL); }
    static long bytes_per_head(long frames, long head_size) {
        const long scales = Number16::SCALED ? sizeof(float) : 0;
        return 2 * padded(frames) * (columns(head_size) * sizeof(uint16_t) + scales);
    }

    long frames_of(long utterance) const {
        long count = frames;
        if (mask != nullptr)
            while (count > 0 && mask[utterance * frames + count - 1] < -1e30f) --count;
        return count;
    }
};

// Panels of one head: keys with frames as columns, then values with frames as depth, then the
// scales of words.
struct PackedHead {
    long columns, frames;  // multiples of PANEL
    char *keys, *values;
    float *key_scales, *value_scales;  // (frames)

    PackedHead(const char* packed, long all_frames, long head_size)
        : columns(CrossKeysValues::columns(head_size)), frames(CrossKeysValues::padded(all_frames)),
          keys((char*)packed), values(keys + bytes()), key_scales((float*)(values + bytes())),
          value_scales(key_scales + frames) {}

    long bytes() const { return frames * columns * sizeof(uint16_t); }  // of keys or values
};

// Up to PANEL queries of one head, with working memory.
struct Queries {
    const float* values;  // (count, stride)
    int count;
    long stride, size;
    Number16::Row* rounded;  // (PANEL, columns)
    float* scales;           // (PANEL) of `rounded`
    Number16::Sum* scores;   // (padded / PANEL, PANEL queries, PANEL frames)
    float* logits;           // (padded) of one query
    Number16::Row* weights;  // (PANEL, weight_stride)
    long weight_stride;  // seldom a power of two, as in QuantizedRows

    Queries(const float* values, int count, long stride, long size, long padded, Scratch& scratch)
        : values(values), count(count), stride(stride), size(size),
          weight_stride(padded + STEP_BYTES / sizeof(Number16::Row)) {
        scratch.reset();
        rounded = scratch.take<Number16::Row>(PANEL * CrossKeysValues::columns(size));
        scales = scratch.take<float>(PANEL);
        scores = scratch.take<Number16::Sum>(PANEL * padded);
        logits = scratch.take<float>(padded);
        weights = scratch.take<Number16::Row>(PANEL * weight_stride);
    }
};

// Rounds queries, with zeros after the head's size.
inline Rows round_queries(const Queries& queries) {
    const long columns = CrossKeysValues::columns(queries.size);
    // LOG2_E: the softmax uses powers of 2.
    const float factor = LOG2_E / std::sqrt((float)queries.size);
    for (int row = 0; row < queries.count; ++row) {
        const float* values = queries.values + row * queries.stride;
        float multiplier = factor;
        if constexpr (Number16::SCALED) {
            Amplitude amplitude;
            for (long at = 0; at < queries.size; at += LANES)
                amplitude.add(absolute(load(values, at, queries.size)));
            const float scale = amplitude.scale(queries.size);
            queries.scales[row] = factor * scale;
            multiplier = 1 / scale;
        }
        round_row<Number16>(values, queries.size, multiplier, queries.rounded + row * columns);
    }
    return {queries.rounded, long(columns * sizeof(Number16::Row)), queries.count};
}

// Turns one query's scores into rounded weights, 0 after the frames. Returns the factor that
// normalizes sums of values; prefetches `next`.
inline float round_weights(
    const Queries& queries, int row, const PackedHead& head, long frames, const float* mask,
    const char* next, long next_bytes) {
    const Number16::Sum* scores = queries.scores + row * PANEL;
    const float *key_scales = head.key_scales, *value_scales = head.value_scales;
    float* logits = queries.logits;
    const Floats row_scale = constant(queries.scales[row]);
    const long padded = CrossKeysValues::padded(frames);
    Floats top = constant(-FLT_MAX), total = constant(0.0f);
    for (long at = 0; at < padded; at += LANES) {
        Floats values = to_floats(load(scores + at / PANEL * PANEL * PANEL + at % PANEL));
        if constexpr (Number16::SCALED)
            values = values * (row_scale * load(key_scales + at));
        if (mask != nullptr)
            values = multiply_add(load(mask, at, frames), constant(LOG2_E), values);
        if (frames - at < LANES) values = select(lanes(at, frames), values, constant(-INFINITY));
        top = maximum(top, values);
        store(logits + at, values);
    }
    top = constant(largest(top));
    Number16::Row* weights = queries.weights + row * queries.weight_stride;
    Amplitude amplitude;
    const long part = next_bytes / std::max<long>(padded / LANES, 1);
    for (long at = 0; at < padded; at += LANES) {
        for (long byte = 0; byte < part; byte += 64)
            _mm_prefetch(next + at / LANES * part + byte, _MM_HINT_T1);
        const Floats weight = power_of_two(load(logits + at) - top);
        total = total + weight;
        if constexpr (Number16::SCALED) {
            const Floats scaled = weight * load(value_scales + at);
            amplitude.add(scaled);
            store(logits + at, scaled);
        } else {
            Number16::store_row(weights + at, weight);
        }
    }
    float scale = 1;
    if constexpr (Number16::SCALED) {
        scale = amplitude.scale(padded);
        round_row<Number16>(logits, padded, 1 / scale, weights);
    }
    return sum(total) > 0 ? scale / sum(total) : 0.0f;
}

// Attention of one head's queries to the first `frames`: (count, stride).
inline void attend_frames(
    const Queries& queries, const PackedHead& head, long frames, const float* mask, float* to) {
    const long key_steps = head.columns / PANEL, key_bytes = key_steps * 2 * BLOCK_BYTES;
    const long steps = CrossKeysValues::padded(frames) / PANEL;
    const long all_steps = head.frames / PANEL;  // of the layout

    Tiles tiles(queries.count);
    const Rows rounded = round_queries(queries);
    for (long step = 0; step < steps; ++step)
        multiply<Number16>(rounded, head.keys + step * key_bytes, key_steps, key_steps,
                           queries.scores + step * PANEL * PANEL);
    float scales[PANEL];
    const long share = head.bytes() / queries.count;
    for (int row = 0; row < queries.count; ++row)
        scales[row] = round_weights(
            queries, row, head, frames, mask, head.values + row * share, share);
    const Rows weights{
        queries.weights, long(queries.weight_stride * sizeof(Number16::Row)), queries.count};
    alignas(64) Number16::Sum sums[PANEL * PANEL];
    for (long begin = 0; begin < queries.size; begin += PANEL) {
        multiply<Number16>(weights, head.values + begin * all_steps * STEP_BYTES, all_steps, steps,
                           sums);
        for (int row = 0; row < queries.count; ++row)
            for (long at = begin; at < begin + PANEL; at += LANES) {
                const Floats sum = to_floats(load(sums + row * PANEL + at - begin));
                store(to + row * queries.stride, at, queries.size, sum * constant(scales[row]));
            }
    }
}

// Computes attention (rows, heads, head size) of queries; threads share utterances and heads.
inline void attend_cross(
    const Nodes& nodes, const CrossKeysValues& cross, const float* queries, float* to) {
    const long size = nodes.head_size, width = nodes.width();
    const long bytes = CrossKeysValues::bytes_per_head(cross.frames, size);
    static thread_local Scratch scratch;
#pragma omp for schedule(static) collapse(2)
    for (long utterance = 0; utterance < nodes.utterances; ++utterance) {
        for (long head = 0; head < nodes.heads; ++head) {
            const PackedHead packed(
                cross.packed + (utterance * nodes.heads + head) * bytes, cross.frames, size);
            const long frames = cross.frames_of(utterance), end = nodes.first_row[utterance + 1];
            const float* mask = cross.mask ? cross.mask + utterance * cross.frames : nullptr;
            for (long row = nodes.first_row[utterance]; row < end; row += PANEL) {
                const long place = row * width + head * size;
                const Queries panel(queries + place, std::min<long>(PANEL, end - row), width, size,
                                    CrossKeysValues::padded(frames), scratch);
                attend_frames(panel, packed, frames, mask, to + place);
            }
        }
    }
}

// Packs `steps` of a column as 32-bit pairs that are TILE pairs apart, and returns its scale.
template <class Type>
float pack_column(const float* column, long size, long steps, uint32_t* to) {
    const float scale = column_scale<Type>(column, size);
    const Floats multiplier = constant(1 / scale);
    for (long step = 0; step < steps; ++step, to += TILE * TILE) {
        uint16_t rounded[PANEL];
        for (long at = 0; at < PANEL; at += LANES)
            Type::store_column(rounded + at, load(column, step * PANEL + at, size) * multiplier);
        for (long pair = 0; pair < TILE; ++pair)
            std::memcpy(to + pair * TILE, rounded + 2 * pair, sizeof(*to));
    }
    return scale;
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
    const PackedHead head(packed, frames, from.size);
    const long steps = head.columns / PANEL, value_steps = head.frames / PANEL;
    for (long place = 0; place < CrossKeysValues::padded(count); place += 2) {
        const long frame = first + place, last = count - place;  // 1: there is no odd frame
        // Frames after the end are not read.
        const long even = last > 0 ? place : 0, odd = last > 1 ? place + 1 : 0;
        const long even_size = last > 0 ? from.size : 0, odd_size = last > 1 ? from.size : 0;
        auto* to_key = (uint32_t*)head.keys + frame / TILE * steps * TILE * TILE + frame % TILE;
        const float scales[] = {pack_column<Number16>(from.key(even), even_size, steps, to_key),
                                pack_column<Number16>(from.key(odd), odd_size, steps, to_key + 1)};
        const float value_scales[] = {column_scale<Number16>(from.value(even), even_size),
                                      column_scale<Number16>(from.value(odd), odd_size)};
        if constexpr (Number16::SCALED) {
            std::copy(scales, scales + 2, head.key_scales + frame);
            std::copy(value_scales, value_scales + 2, head.value_scales + frame);
        }
        for (long at = 0; at < head.columns; at += LANES) {
            const long block = at / TILE * value_steps + frame / PANEL;
            store((int32_t*)head.values + (block * TILE + frame % PANEL / 2) * TILE,
                  Number16::to_pairs(
                      load(from.value(even), at, even_size) * constant(1 / value_scales[0]),
                      load(from.value(odd), at, odd_size) * constant(1 / value_scales[1])));
        }
    }
}
