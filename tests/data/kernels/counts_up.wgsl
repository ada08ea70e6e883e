// counts_up, GROUP = 8, TOLD = True

struct Params {
    x_at: u32,
    out_at: u32,
}
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> params: Params;
var<workgroup> shared_1: array<u32, 2>;
var<workgroup> shared_2: array<f32, 8>;
var<workgroup> uniform_u32: u32;
var<workgroup> uniform_f32x4: vec4<f32>;

@compute @workgroup_size(8, 1, 1)
fn counts_up(@builtin(local_invocation_id) local_id: vec3<u32>, @builtin(local_invocation_index) local_index: u32) {
    let x_at = params.x_at;
    let out_at = params.out_at;
    let me = local_id.x;
    if (me < 2u) {
        shared_1[me] = x[x_at + me];
    }
    workgroupBarrier();
    if (local_index == 0u) { uniform_u32 = shared_1[0u]; }
    let end = workgroupUniformLoad(&uniform_u32);
    shared_2[me] = f32(me);
    for (var unused = 0u; unused < end; unused += 1u) {
        workgroupBarrier();
        let next_one = shared_2[(me + 1u) % 8u];
        workgroupBarrier();
        shared_2[me] = next_one;
    }
    if (local_index == 0u) { uniform_f32x4 = vec4<f32>(f32(shared_1[0u]), f32(shared_1[1u]), 0.5f, f32(end)); }
    let limits = workgroupUniformLoad(&uniform_f32x4);
    out[out_at + me] = limits + shared_2[me];
}
