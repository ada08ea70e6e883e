// order, GROUP = 1

struct Params {
    n: u32,
    x_at: u32,
    counts_at: u32,
    out_at: u32,
}
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> counts: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(1, 1, 1)
fn order() {
    let n = params.n;
    let x_at = params.x_at;
    let counts_at = params.counts_at;
    let out_at = params.out_at;
    let value = counts[counts_at];
    counts[counts_at] = counts[counts_at] + 3u;
    out[out_at] = value + counts[counts_at] * 10u + counts[counts_at] * 100u;
    let value_1 = x[x_at];
    let value_2 = x[x_at + 1u];
    var a = value_1;
    var b = value_2;
    let value_3 = b;
    let value_4 = a;
    a = value_3;
    b = value_4;
    out[out_at + 1u] = a * 10u + b;
    var found: u32;
    if (n > 2u) {
        found = x[x_at + n - 1u];
    } else if (n > 1u) {
        found = x[x_at];
    } else {
        found = 7u;
    }
    out[out_at + 2u] = found;
    var value_5: u32;
    if (n < 3u) {
        value_5 = x[x_at + n];
    } else {
        value_5 = 9u;
    }
    out[out_at + 3u] = value_5;
    var holds = n < 3u && x[x_at + n] > 0u;
    if (holds) {
        counts[counts_at] = counts[counts_at] + 1u;
        holds = counts[counts_at] > 0u;
    }
    out[out_at + 4u] = select(0u, 1u, holds);
    var holds_1 = n == 3u;
    if (!holds_1) {
        counts[counts_at] = counts[counts_at] + 1u;
        holds_1 = counts[counts_at] > 0u;
    }
    out[out_at + 5u] = select(0u, 1u, holds_1);
    let kept = counts[counts_at];
    counts[counts_at] = counts[counts_at] + 5u;
    out[out_at + 6u] = kept;
    let n_1 = n + 1u;
    var x_1 = n_1;
    x_1 += 1u;
    let first = x_1;
    let second = x_1 * 2u;
    out[out_at + 7u] = n_1 * 10000u + first * 100u + second;
    var previous = 0u;
    for (var i = 0u; i < 3u; i += 1u) {
        if (i > 0u) {
            out[out_at + 7u + i] = previous;
        }
        previous = x[x_at + i];
    }
    var index = 10u;
    loop {
        counts[counts_at] = counts[counts_at] + 1u;
        if (!(counts[counts_at] < 13u)) {
            break;
        }
        index += 1u;
    }
    out[out_at + index] = counts[counts_at];
}
