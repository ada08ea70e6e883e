// flow, GROUP = 8, STEPS = 3

struct Params {
    n: u32,
    x_at: u32,
    out_at: u32,
}
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<i32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(8, 1, 1)
fn flow(@builtin(global_invocation_id) global_id: vec3<u32>) {
    let n = params.n;
    let x_at = params.x_at;
    let out_at = params.out_at;
    let i = global_id.x;
    if (i >= n) {
        return;
    }
    var steps = 0i;
    var value = x[x_at + i];
    while (value != 1u && steps < 40i) {
        value = select(3u * value + 1u, value / 2u, value % 2u == 0u);
        steps += 1i;
    }
    for (var j = 10i; j > 0i; j -= 3i) {
        if (j == 4i) {
            continue;
        }
        steps += j;
    }
    for (var j = 0u; j < 100u; j += 1u) {
        if (j * j > i) {
            break;
        }
        steps -= 1i;
    }
    steps *= 2i;
    if (i > 3u || (i == 2u && !(steps > 5i))) {
        steps -= i32(x[x_at + i - 2u]);
    }
    steps = steps * 2i + 2i;
    let dividend = steps;
    let quotient = dividend / -3i;
    let rest = dividend - quotient * -3i;
    let dividend_1 = steps;
    let quotient_1 = dividend_1 / 5i;
    let rest_1 = dividend_1 - quotient_1 * 5i;
    out[out_at + i] = quotient + (((rest ^ (-3i)) & (rest | (-rest))) >> 31u) + (rest_1 + (5i & (rest_1 >> 31u)));
}
