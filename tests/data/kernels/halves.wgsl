// halves, GROUP = 8

struct Params {
    a_at: u32,
    b_at: u32,
    out_at: u32,
}
@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read> b: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(8, 1, 1)
fn halves(@builtin(global_invocation_id) global_id: vec3<u32>) {
    let a_at = params.a_at;
    let b_at = params.b_at;
    let out_at = params.out_at;
    let i = global_id.x;
    out[out_at + i] = pack2x16float(vec2<f32>(unpack2x16float(a[(a_at + i) >> 1u])[(a_at + i) & 1u] * 2.0f + 0.5f, vec4<f32>(unpack2x16float(b[(b_at + i) * 2u + 0u]), unpack2x16float(b[(b_at + i) * 2u + 1u])).z * 2.0f));
}
