// rms_norm, GROUP = 16, HAS_WEIGHT = True

struct Params {
    n: u32,
    eps: f32,
    x_at: u32,
    weight_at: u32,
    out_at: u32,
}
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;
var<workgroup> partial: array<f32, 16>;

@compute @workgroup_size(16, 1, 1)
fn rms_norm(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_id) local_id: vec3<u32>, @builtin(num_workgroups) num_groups: vec3<u32>, @builtin(local_invocation_index) local_index: u32) {
    let n = params.n;
    let eps = params.eps;
    let x_at = params.x_at;
    let weight_at = params.weight_at;
    let out_at = params.out_at;
    let row = group_id.x + group_id.y * num_groups.x;
    var total = 0.0f;
    for (var i = local_id.x; i < n; i += 16u) {
        total += x[x_at + row * n + i] * x[x_at + row * n + i];
    }
    let x_1 = total;
    let me = local_index;
    partial[me] = x_1;
    workgroupBarrier();
    if (me < 8u) {
        let a = partial[me];
        let b = partial[me + 8u];
        partial[me] = a + b;
    }
    workgroupBarrier();
    if (me < 4u) {
        let a_1 = partial[me];
        let b_1 = partial[me + 4u];
        partial[me] = a_1 + b_1;
    }
    workgroupBarrier();
    if (me < 2u) {
        let a_2 = partial[me];
        let b_2 = partial[me + 2u];
        partial[me] = a_2 + b_2;
    }
    workgroupBarrier();
    if (me < 1u) {
        let a_3 = partial[me];
        let b_3 = partial[me + 1u];
        partial[me] = a_3 + b_3;
    }
    workgroupBarrier();
    let result = partial[0u];
    workgroupBarrier();
    total = result;
    let scale = 1.0f / sqrt(total / f32(n) + eps);
    for (var i = local_id.x; i < n; i += 16u) {
        out[out_at + row * n + i] = x[x_at + row * n + i] * scale * weight[weight_at + i];
    }
}
