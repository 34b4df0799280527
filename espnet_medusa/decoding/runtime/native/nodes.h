// Rows of new nodes, grouped by utterance.
#pragma once

#include <cstdint>

// New nodes of U utterances.
struct Nodes {
    int64_t utterances, heads, head_size;
    const int32_t* first_row;  // (U + 1) first row of each utterance, then the number of rows

    long rows() const { return first_row[utterances]; }
    long width() const { return heads * head_size; }
};
