// Self-attention of new nodes to the nodes of their tree, in float32.
#pragma once

#include <cfloat>
#include <type_traits>

#include "nodes.h"
#include "vectors.h"

// Queries, keys and values of one layer's tree nodes.
struct Tree {
    const float* joined;  // (rows, 3, heads, head size): the new nodes'
    float* slots;         // (U, capacity, 2, heads, head size): keys and values of all nodes
    int64_t capacity;
    const int32_t* known;  // (U) slots of earlier nodes; equal unless the nodes are chains
    const uint8_t* visible;  // (U, width, bytes) one bit per slot; null: the nodes are chains, and
                             // all earlier ones are visible
    int64_t width;        // largest number of new nodes of an utterance

    long slots_of(long utterance, long count) const {
        return known[utterance] + (visible ? width : count);
    }
    // The bits of each node are padded to a multiple of 16.
    const uint8_t* visible_to(long utterance, long node) const {
        if (visible == nullptr) return nullptr;
        return visible + (utterance * width + node) * (round_up(known[0] + width, LANES) / 8);
    }
};

// Turns scores into weights that are not normalized, and returns their sum. Stores whole vectors:
// a load right after a masked store would have to wait.
inline float softmax(long count, float* scores) {
    Floats top = constant(-FLT_MAX), total = constant(0.0f);
    for (long at = 0; at < count; at += LANES) {
        const Floats values = load(scores, at, count, -INFINITY);
        top = maximum(top, values);
        store(scores + at, values);
    }
    top = constant(largest(top));
    for (long at = 0; at < count; at += LANES) {
        const Floats weight = exponential(load(scores + at) - top);
        total = total + weight;
        store(scores + at, weight);
    }
    return sum(total);
}

// Keys and values of one head in consecutive slots.
struct Slots {
    const float* keys;
    const float* values;
    long count, stride, size;
};

// The slots visible to a node: its path from the root, in order. So sums do not depend on
// which slots the path has.
struct Path {
    const int32_t* slots;
    long count;

    long at(long place) const { return slots[std::min(place, count - 1)]; }
};

inline Path list_path(const uint8_t* visible, long count, int32_t* slots) {
    long listed = 0;
    for (long first = 0; first < count; first += LANES) {
        unsigned set = bits(lanes(first, count));
        if (visible != nullptr) set &= visible[first / 8] | visible[first / 8 + 1] << 8;
        for (; set != 0; set &= set - 1) slots[listed++] = first + __builtin_ctz(set);
    }
    return {slots, listed};
}

// Whisper's head size as a constant, so that the compiler can unroll loops.
using UsualSize = std::integral_constant<long, 64>;

// Multiplies one query with the keys of a path, 4 at a time; writes up to 3 extra scores.
template <class Size>
void multiply_keys(
    const float* query, const Slots& slots, const Path& path, Size size, float scale,
    float* scores) {
    for (long place = 0; place < path.count; place += 4) {
        const float* keys[4];
        Floats total[4];
        for (int i = 0; i < 4; ++i) {
            keys[i] = slots.keys + path.at(place + i) * slots.stride;
            total[i] = constant(0.0f);
        }
        for (long at = 0; at < size; at += LANES) {
            const Floats values = load(query, at, size);
            for (int i = 0; i < 4; ++i)
                total[i] = multiply_add(values, load(keys[i], at, size), total[i]);
        }
        const __m128 products = sums(total[0], total[1], total[2], total[3]);
        _mm_storeu_ps(scores + place, products * _mm_set1_ps(scale));
    }
}

// Writes the weighted sum of a path's values, times `scale`.
template <class Size>
void add_values(
    const float* weights, const Slots& slots, const Path& path, Size size, float scale,
    float* to) {
    constexpr int TOGETHER = REGISTERS > 8 ? 4 : 2;
    for (long begin = 0; begin < size; begin += TOGETHER * LANES) {
        Floats even[TOGETHER] = {}, odd[TOGETHER] = {};  // two sums hide the latency of additions
        auto add = [&](long place, Floats* total) {
            const float* values = slots.values + path.slots[place] * slots.stride;
            const Floats weight = constant(weights[place]);
            for (int i = 0; i < TOGETHER; ++i)
                total[i] = multiply_add(weight, load(values, begin + i * LANES, size), total[i]);
        };
        for (long place = 0; place + 1 < path.count; place += 2) {
            add(place, even);
            add(place + 1, odd);
        }
        if (path.count % 2) add(path.count - 1, even);
        for (int i = 0; i < TOGETHER; ++i)
            store(to, begin + i * LANES, size, (even[i] + odd[i]) * constant(scale));
    }
}

// Attention of one node and head. `scores` has LANES more elements than the path.
template <class Size>
void attend_slots(
    const float* query, const Slots& slots, const Path& path, Size size, float* scores,
    float* to) {
    multiply_keys(query, slots, path, size, 1.0f / std::sqrt((float)size), scores);
    const float total = softmax(path.count, scores);
    add_values(scores, slots, path, size, total > 0 ? 1 / total : 0.0f, to);
}

inline void copy(const float* from, long size, float* to) {
    for (long at = 0; at < size; at += LANES) store(to, at, size, load(from, at, size));
}

// Copies keys and values of new nodes, for one head, to their slots.
inline void fill_slots(
    const Nodes& nodes, const float* joined, long count, float* slot) {
    const long width = nodes.width();
    for (long node = 0; node < count; ++node, joined += 3 * width, slot += 2 * width) {
        copy(joined + width, nodes.head_size, slot);
        copy(joined + 2 * width, nodes.head_size, slot + width);
    }
}

// Copies slots next to each other: if a power of two apart, they would share sets of the cache.
inline Slots gather(const Slots& slots, float* to) {
    const Slots gathered{to, to + slots.size, slots.count, 2 * slots.size, slots.size};
    for (long slot = 0; slot < slots.count; ++slot, to += gathered.stride) {
        copy(slots.keys + slot * slots.stride, slots.size, to);
        copy(slots.values + slot * slots.stride, slots.size, to + slots.size);
    }
    return gathered;
}

// Computes attention (rows, heads, head size) of all nodes; threads share utterances and heads.
inline void attend_tree(const Nodes& nodes, const Tree& tree, float* to) {
    const long size = nodes.head_size, width = nodes.width();
    static thread_local Scratch scratch;
#pragma omp for schedule(static) collapse(2)
    for (long utterance = 0; utterance < nodes.utterances; ++utterance) {
        for (long head = 0; head < nodes.heads; ++head) {
            const long first = nodes.first_row[utterance];
            const long count = nodes.first_row[utterance + 1] - first;
            const long earlier = tree.known[utterance], known = tree.slots_of(utterance, count);
            float* keys = tree.slots + utterance * tree.capacity * 2 * width + head * size;
            const float* joined = tree.joined + first * 3 * width + head * size;
            fill_slots(nodes, joined, count, keys + earlier * 2 * width);
            Slots slots{keys, keys + width, known, 2 * width, size};
            scratch.reset();
            float* scores = scratch.take<float>(known + LANES);
            int32_t* places = scratch.take<int32_t>(known);
            if (count > 1) slots = gather(slots, scratch.take<float>(known * 2 * size));
            auto attend = [&](auto fixed) {
                for (long node = 0; node < count; ++node) {
                    const long seen = tree.visible ? known : earlier + node + 1;
                    const Path path = list_path(tree.visible_to(utterance, node), seen, places);
                    attend_slots(joined + node * 3 * width, slots, path, fixed, scores,
                                 to + (first + node) * width + head * size);
                }
            };
            size == UsualSize::value ? attend(UsualSize{}) : attend(size);
        }
    }
}
