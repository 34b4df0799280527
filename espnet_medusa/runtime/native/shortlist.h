// Logits of the columns that are likely to be a row's best: approximate logits choose panels of
// columns, and only these get exact logits. So most weights of a projection are not read.
#pragma once

#include <numeric>

#include "linear.h"

// Approximate logits are scores(reduce(row)).
struct Shortlist {
    Linear reduce, scores;
    int64_t panels;  // with exact logits; 0: all columns have exact logits
};

// Writes the panels with the largest logits, in ascending order; `maxima` and `order` are working
// memory for one number per panel.
inline void choose_panels(
    const float* logits, long size, long panels, float* maxima, int32_t* order, int32_t* chosen) {
    const long count = round_up(size, PANEL) / PANEL;
    for (long panel = 0; panel < count; ++panel) {
        Floats top = constant(-INFINITY);
        for (long at = panel * PANEL; at < (panel + 1) * PANEL; at += LANES)
            top = maximum(top, load(logits, at, size, -INFINITY));
        maxima[panel] = largest(top);
    }
    std::iota(order, order + count, 0);
    std::nth_element(order, order + panels, order + count, [&](int32_t one, int32_t other) {
        return maxima[one] > maxima[other] || (maxima[one] == maxima[other] && one < other);
    });
    std::sort(order, order + panels);
    std::copy_n(order, panels, chosen);
}

// Working memory for `count` rows.
struct ShortlistRows {
    float *reduced, *approximate, *maxima;
    int32_t *order, *chosen;  // `chosen`: (count, panels)
    QuantizedRows rows;  // of `reduced`

    static long panels_of(const Shortlist& list) {
        return round_up(list.scores.outputs, PANEL) / PANEL;
    }
    static size_t bytes(const Shortlist& list, long count) {
        return Scratch::bytes_of<float>(count * list.reduce.outputs) +
               Scratch::bytes_of<float>(count * list.scores.outputs) +
               Scratch::bytes_of<float>(count * panels_of(list)) +
               Scratch::bytes_of<int32_t>(count * panels_of(list)) +
               Scratch::bytes_of<int32_t>(count * list.panels) +
               QuantizedRows::bytes(count, list.reduce.outputs);
    }
    ShortlistRows(Scratch& scratch, const Shortlist& list, long count)
        : reduced(scratch.take<float>(count * list.reduce.outputs)),
          approximate(scratch.take<float>(count * list.scores.outputs)),
          maxima(scratch.take<float>(count * panels_of(list))),
          order(scratch.take<int32_t>(count * panels_of(list))),
          chosen(scratch.take<int32_t>(count * list.panels)),
          rows(scratch, count, list.reduce.outputs) {}
};

// Writes logits (count, panels * PANEL) of each row's chosen panels; -inf after the last column.
inline void multiply_shortlisted(
    const Linear& projection, const Shortlist& list, const QuantizedRows& rows, long count,
    const ShortlistRows& work, float* to) {
    const long size = projection.outputs, steps = projection.steps();
    const long all = ShortlistRows::panels_of(list), panels = list.panels;
    multiply_linear(list.reduce, rows, count, nullptr, work.reduced);
    quantize_rows(work.reduced, count, list.reduce.outputs, nullptr, nullptr, work.rows);
    multiply_linear(list.scores, work.rows, count, nullptr, work.approximate);
#pragma omp for schedule(static)
    for (long row = 0; row < count; ++row)
        choose_panels(work.approximate + row * size, size, panels, work.maxima + row * all,
                      work.order + row * all, work.chosen + row * panels);
    auto blocks_of = [&](long place) {
        return projection.blocks + work.chosen[place] * PANEL * steps * STEP_BYTES;
    };
    Tiles tiles(1);
    alignas(64) int32_t sums[PANEL * PANEL];
#pragma omp for schedule(static)
    for (long place = 0; place < count * panels; ++place) {
        const long row = place / panels, column = work.chosen[place] * PANEL;
        const long next = std::min(place + 1, count * panels - 1);
        float* logits = to + place * PANEL;
        std::fill_n(logits, PANEL, -INFINITY);
        multiply<Bytes>(
            rows.from(row, 1), blocks_of(place), steps, steps, sums, blocks_of(next));
        finish(projection, column, sums, rows.scales + row, 1, nullptr, logits - column);
    }
}
