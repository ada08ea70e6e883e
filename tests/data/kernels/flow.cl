// flow, GROUP = 8, STEPS = 3
typedef struct {
    uint n;
    uint x_at;
    uint out_at;
} Params;

__kernel __attribute__((reqd_work_group_size(8, 1, 1)))
void flow(
    __global const uint *x,
    __global int *out,
    __constant const Params *params) {
    const uint n = params->n;
    x += params->x_at;
    out += params->out_at;
    const uint3 global_id = (uint3)((uint)get_global_id(0), (uint)get_global_id(1), (uint)get_global_id(2));
    const uint i = global_id.x;
    if (i >= n) {
        return;
    }
    int steps = 0;
    uint value = x[i];
    while (value != 1u && steps < 40) {
        value = (value % 2u == 0u ? value / 2u : 3u * value + 1u);
        steps += 1;
    }
    for (int j = 10; j > 0; j -= 3) {
        if (j == 4) {
            continue;
        }
        steps += j;
    }
    for (uint j = 0u; j < 100u; j += 1u) {
        if (j * j > i) {
            break;
        }
        steps -= 1;
    }
    steps *= 2;
    if (i > 3u || (i == 2u && !(steps > 5))) {
        steps -= (int)(x[i - 2u]);
    }
    steps = steps * 2 + 2;
    const int dividend = steps;
    const int quotient = dividend / -3;
    const int rest = dividend - quotient * -3;
    const int dividend_1 = steps;
    const int quotient_1 = dividend_1 / 5;
    const int rest_1 = dividend_1 - quotient_1 * 5;
    out[i] = quotient + (((rest ^ (-3)) & (rest | (-rest))) >> 31u) + (rest_1 + (5 & (rest_1 >> 31u)));
}
