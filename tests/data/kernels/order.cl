// order, GROUP = 1
typedef struct {
    uint n;
    uint x_at;
    uint counts_at;
    uint out_at;
} Params;

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void order(
    __global const uint *x,
    __global uint *counts,
    __global uint *out,
    __constant const Params *params) {
    const uint n = params->n;
    x += params->x_at;
    counts += params->counts_at;
    out += params->out_at;
    const uint value = counts[0u];
    counts[0u] = counts[0u] + 3u;
    out[0u] = value + counts[0u] * 10u + counts[0u] * 100u;
    const uint value_1 = x[0u];
    const uint value_2 = x[1u];
    uint a = value_1;
    uint b = value_2;
    const uint value_3 = b;
    const uint value_4 = a;
    a = value_3;
    b = value_4;
    out[1u] = a * 10u + b;
    uint found = 0u;
    if (n > 2u) {
        found = x[n - 1u];
    } else if (n > 1u) {
        found = x[0u];
    } else {
        found = 7u;
    }
    out[2u] = found;
    uint value_5 = 0u;
    if (n < 3u) {
        value_5 = x[n];
    } else {
        value_5 = 9u;
    }
    out[3u] = value_5;
    bool holds = n < 3u && x[n] > 0u;
    if (holds) {
        counts[0u] = counts[0u] + 1u;
        holds = counts[0u] > 0u;
    }
    out[4u] = (holds ? 1u : 0u);
    bool holds_1 = n == 3u;
    if (!holds_1) {
        counts[0u] = counts[0u] + 1u;
        holds_1 = counts[0u] > 0u;
    }
    out[5u] = (holds_1 ? 1u : 0u);
    const uint kept = counts[0u];
    counts[0u] = counts[0u] + 5u;
    out[6u] = kept;
    const uint n_1 = n + 1u;
    uint x_1 = n_1;
    x_1 += 1u;
    const uint first = x_1;
    const uint second = x_1 * 2u;
    out[7u] = n_1 * 10000u + first * 100u + second;
    uint previous = 0u;
    for (uint i = 0u; i < 3u; i += 1u) {
        if (i > 0u) {
            out[7u + i] = previous;
        }
        previous = x[i];
    }
    uint index = 10u;
    while (true) {
        counts[0u] = counts[0u] + 1u;
        if (!(counts[0u] < 13u)) {
            break;
        }
        index += 1u;
    }
    out[index] = counts[0u];
}
