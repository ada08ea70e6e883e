// halves, GROUP = 8
enable f16;

struct Params {
    a_at: u32,
    b_at: u32,
    out_at: u32,
}
@group(0) @binding(0) var<storage, read> a: array<f16>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f16>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec2<f16>>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(8, 1, 1)
fn halves(@builtin(global_invocation_id) global_id: vec3<u32>) {
    let a_at = params.a_at;
    let b_at = params.b_at;
    let out_at = params.out_at;
    let i = global_id.x;
    out[out_at + i] = vec2<f16>(a[a_at + i] * 2.0h + 0.5h, b[b_at + i].z * 2.0h);
}
