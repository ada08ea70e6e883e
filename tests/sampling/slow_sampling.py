"""The chain of sampling steps by loops over Python's floats: the reference of its tests."""

from __future__ import annotations

import itertools
import math


def penalise(rows, history, params):
    window = list(history) if params.repeat_last_n < 0 else list(history)[-params.repeat_last_n :]
    if params.repeat_last_n == 0:
        window = []
    for row in rows:
        count = window.count(row[0])
        if count:
            row[1] = row[1] * params.repeat_penalty if row[1] <= 0 else row[1] / params.repeat_penalty
            row[1] -= count * params.frequency_penalty + params.presence_penalty


NEAR = 1e-5  # a cut that would fall elsewhere after a change this small is left out: rounding decides there


def reference(logits, history, params):
    """Return {id: probability} by loops over Python floats, None where rounding may decide."""
    rows = [[i, float(x)] for i, x in enumerate(logits)]
    for token, bias in params.logit_bias.items():
        rows[token][1] += bias
    penalise(rows, history, params)
    if params.temperature == 0:
        best = max(rows, key=lambda row: (row[1], -row[0]))
        near = [row for row in rows if row is not best and best[1] - row[1] < NEAR and row[1] != best[1]]
        return None if near else {best[0]: 1.0}
    ranked = sorted(rows, key=lambda row: -row[1])
    if params.top_k > 0:
        ranked = first(ranked, params.top_k)
        if ranked is None:
            return None
    for keep, p, beyond in ((typical_order, params.typical_p, True), (likely_order, params.top_p, False)):
        if p < 1.0:
            ranked = cut(*keep(ranked), p, params.min_keep, beyond)
            if ranked is None:
                return None
    if params.min_p > 0.0:
        ranked = above_the_least(ranked, params)
    return ranked and soften(ranked, params)


def first(ranked, k):
    if k >= len(ranked):
        return ranked
    last = ranked[k - 1][1]
    return None if any(0 < abs(row[1] - last) < NEAR for row in ranked) else ranked[:k]


def above_the_least(rows, params):
    rows = sorted(rows, key=lambda row: -row[1])
    lowest = rows[0][1] + math.log(params.min_p)
    if any(abs(row[1] - lowest) < NEAR for row in rows[1:]):
        return None
    passing = [row for row in rows if row[1] >= lowest]
    return passing if len(passing) >= params.min_keep else first(rows, params.min_keep)


def chances(rows):
    top = max(row[1] for row in rows)
    weights = [math.exp(row[1] - top) for row in rows]
    return [weight / sum(weights) for weight in weights]


def typical_order(rows):
    p = chances(rows)
    entropy = -sum(x * math.log(x) for x in p if x > 0)
    return rows, p, [abs(-math.log(x) - entropy) if x > 0 else math.inf for x in p]


def likely_order(rows):
    return rows, chances(rows), [-row[1] for row in rows]


def cut(rows, p, score, mass, min_keep, beyond):
    order = sorted(range(len(rows)), key=lambda i: (score[i], rows[i][0]))
    for a, b in itertools.pairwise(order):
        if rows[a][1] != rows[b][1] and abs(score[a] - score[b]) < NEAR:
            return None
    total = 0.0
    for n, i in enumerate(order, 1):
        total += p[i]
        if abs(total - mass) < NEAR:
            return None
        if (total > mass if beyond else total >= mass) and n >= min_keep:
            return [rows[i] for i in order[:n]]
    return [rows[i] for i in order]


def soften(rows, params):
    temperature = params.temperature
    if params.dynatemp_range > 0 and len(rows) > 1:
        entropy = -sum(x * math.log(x) for x in chances(rows) if x > 0)
        low, high = max(0.0, temperature - params.dynatemp_range), temperature + params.dynatemp_range
        temperature = low + (high - low) * (entropy / math.log(len(rows))) ** params.dynatemp_exponent
        if temperature < 1e-3:
            return None
    elif params.dynatemp_range > 0:
        return {rows[0][0]: 1.0}
    rows = [[token, logit / temperature] for token, logit in rows]
    return {row[0]: p for row, p in zip(rows, chances(rows), strict=True)}
