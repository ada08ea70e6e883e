// packed, GROUP = 8

struct Params {
    words_at: u32,
    out_at: u32,
}
@group(0) @binding(0) var<storage, read> words: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(8, 1, 1)
fn packed(@builtin(global_invocation_id) global_id: vec3<u32>) {
    let words_at = params.words_at;
    let out_at = params.out_at;
    let i = global_id.x;
    let word = words[words_at + i];
    let pair = unpack2x16float(word);
    let value = f32((words[words_at + (i >> 2u)] >> ((i & 3u) << 3u)) & 255u);
    let offset = 2u * i;
    out[out_at + 6u * i] = value + unpack2x16float((words[words_at + (offset >> 2u)] >> ((offset & 2u) << 3u)) & 65535u).x;
    let offset_1 = i + 1u;
    let at = offset_1 >> 2u;
    let shift = (offset_1 & 3u) << 3u;
    let low = words[words_at + at] >> shift;
    var value_1: u32;
    if (shift == 0u) {
        value_1 = low;
    } else {
        value_1 = low | (words[words_at + at + 1u] << (32u - shift));
    }
    out[out_at + 6u * i + 1u] = f32(value_1 >> 12u);
    let low_1 = words[words_at] >> 16u;
    let b = low_1 | (words[words_at + 1u] << 16u);
    let products = (bitcast<vec4<i32>>(vec4<u32>(word << 24u, word << 16u, word << 8u, word)) >> vec4<u32>(24u)) * (bitcast<vec4<i32>>(vec4<u32>(b << 24u, b << 16u, b << 8u, b)) >> vec4<u32>(24u));
    out[out_at + 6u * i + 2u] = f32(-7i + products.x + products.y + products.z + products.w);
    out[out_at + 6u * i + 3u] = pair.x - pair.y;
    out[out_at + 6u * i + 4u] = bitcast<f32>(pack2x16float(pair) ^ 0x80008000u);
    out[out_at + 6u * i + 5u] = f32((bitcast<i32>(word) >> 9u) ^ 5i);
}
