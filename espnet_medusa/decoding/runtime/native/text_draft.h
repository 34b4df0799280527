// A known text as a draft: draft/text.py, with alignment.py's edit distance in whole numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

class TextDraft {
  public:
    TextDraft() = default;

    // Tokens of the text; those from `first_time` to before `after_times` are not aligned.
    TextDraft(const int64_t* tokens, long length, int64_t first_time, int64_t after_times,
              int64_t eos)
        : tokens(tokens, tokens + length), first_time(first_time), after_times(after_times) {
        this->tokens.push_back(eos);
        for (long place = 0; place < length; ++place)
            if (!is_time(tokens[place])) untimed.push_back(place);
        costs.assign(untimed.size() + 1, 0);
    }

    // Appends a token of the decoded text.
    void append(int64_t token) {
        if (is_time(token)) {
            skipped += 1;
            time = token;
            return;
        }
        // An insertion costs 2, a substitution 1 and a deletion 0.
        int32_t before = costs[0], least = costs[0] += 2;
        for (size_t place = 1; place < costs.size(); ++place) {
            const int32_t other = tokens[untimed[place - 1]] != token;
            const int32_t cost = std::min(costs[place] + 2, before + other);
            before = costs[place];
            costs[place] = least = std::min(least, cost);
        }
        last = token;
        skipped = 0;
    }

    // Whether the decoded text is empty or ends with the token before its best place.
    bool matched() const {
        const size_t place = best_place();
        return (place == 0 ? NONE : tokens[untimed[place - 1]]) == last;
    }

    // Writes the tokens after the best place, and the end symbol after them.
    void draft(int64_t* chain, long depth) const {
        const size_t place = best_place();
        const long end = tokens.size() - 1;
        const long next = place < untimed.size() ? untimed[place] : end;
        long at = std::min(place == 0 ? skipped : untimed[place - 1] + 1 + skipped, next);
        // A single timestamp after text is drafted again: a segment mostly begins where one ends.
        const bool again = skipped == 1 && last != NONE && tokens[at] != tokens[end];
        if (again) *chain = time;
        if (again && is_time(tokens[at])) ++at;
        for (long step = again; step < depth; ++step, at = std::min(at + 1, end))
            chain[step] = tokens[at];
    }

  private:
    static constexpr int64_t NONE = -1;

    bool is_time(int64_t token) const { return token >= first_time && token < after_times; }

    // The place with the fewest edits; of equally good places, the last one.
    size_t best_place() const {
        size_t best = 0;
        for (size_t place = 1; place < costs.size(); ++place)
            if (costs[place] + long(place) <= costs[best] + long(best)) best = place;
        return best;
    }

    std::vector<int64_t> tokens;
    std::vector<long> untimed;   // indices of the tokens that are aligned
    std::vector<int32_t> costs;  // of the decoded text and the first 0, 1, ... aligned tokens
    int64_t first_time = 0, after_times = 0;
    int64_t last = NONE, time = NONE;  // last aligned token, and last timestamp
    long skipped = 0;                  // timestamps at the end of the decoded text
};
