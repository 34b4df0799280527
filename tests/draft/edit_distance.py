"""Levenshtein distance as in textbooks, the oracle of CTC alignment."""


def edit_distance(source, target):
    row = [*range(len(target) + 1)]
    for place, symbol in enumerate(source, 1):
        above, row = row, [place]
        for column, expected in enumerate(target, 1):
            costs = above[column] + 1, row[-1] + 1, above[column - 1] + (symbol != expected)
            row.append(min(costs))
    return row
