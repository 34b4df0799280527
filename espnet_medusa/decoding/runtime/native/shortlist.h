// Exact logits of the columns that probably include a row's best one. Low-rank approximate logits
// select panels of columns, and only the weights of these panels are read.
#pragma once

#include <numeric>

#include "linear.h"

// Approximate logits are scores(reduce(row)), up to a number per row.
struct Shortlist {
    Linear reduce, scores;
    int64_t panels;  // per row with exact logits, fewer than there are; 0: no shortlist

    long all_panels() const { return round_up(scores.outputs, PANEL) / PANEL; }
};

// Working memory for `count` rows.
struct ShortlistRows {
    float *reduced, *maxima;
    int32_t* order;  // (count, all panels), the selected ones first
    QuantizedRows rows;  // of `reduced`

    ShortlistRows(Scratch& scratch, const Shortlist& list, long count)
        : reduced(scratch.take<float>(count * list.reduce.outputs)),
          maxima(scratch.take<float>(count * list.all_panels())),
          order(scratch.take<int32_t>(count * list.all_panels())),
          rows(scratch, count, list.reduce.outputs) {}

    // The panel of a row's shortlist at `place`.
    long panel(const Shortlist& list, long row, long place) const {
        return order[row * list.all_panels() + place];
    }
};

// Writes the largest approximate logit of each panel to `maxima` (count, all panels); threads share
// the panels.
inline void find_maxima(
    const Shortlist& list, const QuantizedRows& rows, long count, float* maxima) {
    const Linear& scores = list.scores;
    const long all = list.all_panels();
    Tiles tiles(count);
    alignas(64) int32_t sums[PANEL * PANEL];
#pragma omp for schedule(static)
    for (long panel = 0; panel < all; ++panel) {
        const long column = panel * PANEL;
        const Outputs halves[] = {{scores, column, -INFINITY}, {scores, column + LANES, -INFINITY}};
        for (long first = 0; first < count; first += PANEL) {
            const Rows in_panel = rows.from(first, std::min<long>(count - first, PANEL));
            // Two panels ahead: a panel has few bytes, so the next one would arrive too late.
            multiply_panel(scores, panel, std::min(panel + 2, all - 1), in_panel, sums);
            for (long row = 0; row < in_panel.count; ++row) {
                const int32_t* of_row = sums + row * PANEL;
                const float scale = rows.scales[first + row];
                maxima[(first + row) * all + panel] = largest(maximum(
                    halves[0].from(of_row, scale), halves[1].from(of_row + LANES, scale)));
            }
        }
    }
}

// Puts the indices of the `selected` of `count` panels with the largest maxima first in `order`,
// ascending.
inline void select_panels(const float* maxima, long count, long selected, int32_t* order) {
    std::iota(order, order + count, 0);
    // With few selected panels, five times as fast as nth_element.
    std::partial_sort(order, order + selected, order + count, [&](int32_t one, int32_t other) {
        return maxima[one] > maxima[other] || (maxima[one] == maxima[other] && one < other);
    });
    std::sort(order, order + selected);
}

// Writes logits (count, panels * PANEL) of each row's selected panels to `to`; -inf after the last
// column.
inline void multiply_shortlisted(
    const Linear& projection, const Shortlist& list, const QuantizedRows& rows, long count,
    const ShortlistRows& work, float* to) {
    multiply_linear(list.reduce, rows, count, nullptr, work.reduced);
    quantize_rows(work.reduced, count, list.reduce.outputs, nullptr, nullptr, work.rows);
    const long all = list.all_panels();
    find_maxima(list, work.rows, count, work.maxima);
#pragma omp for schedule(static)
    for (long row = 0; row < count; ++row)
        select_panels(work.maxima + row * all, all, list.panels, work.order + row * all);
    const long last = count * list.panels - 1;
    auto panel_of = [&](long place) {
        return work.panel(list, place / list.panels, place % list.panels);
    };
    Tiles tiles(1);
    alignas(64) int32_t sums[PANEL * PANEL];
#pragma omp for schedule(static)
    for (long place = 0; place <= last; ++place) {
        const long row = place / list.panels, panel = panel_of(place), column = panel * PANEL;
        float* logits = to + place * PANEL;
        std::fill_n(logits, PANEL, -INFINITY);
        const long next = panel_of(std::min(place + 1, last));
        multiply_panel(projection, panel, next, rows.from(row, 1), sums);
        finish(projection, column, sums, rows.scales + row, 1, nullptr, logits - column);
    }
}
