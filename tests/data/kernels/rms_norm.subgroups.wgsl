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
var<workgroup> one_each: array<f32, 4>;

@compute @workgroup_size(16, 1, 1)
fn rms_norm(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_id) local_id: vec3<u32>, @builtin(num_workgroups) num_groups: vec3<u32>, @builtin(subgroup_invocation_id) subgroup_lane: u32, @builtin(subgroup_id) subgroup_id: u32, @builtin(num_subgroups) subgroup_count: u32) {
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
    let inner = subgroupAdd(total);
    if (subgroup_lane == 0u) {
        one_each[subgroup_id] = inner;
    }
    workgroupBarrier();
    var total_1 = one_each[0u];
    for (var i = 1u; i < subgroup_count; i += 1u) {
        total_1 += one_each[i];
    }
    workgroupBarrier();
    total = total_1;
    let scale = 1.0f / sqrt(total / f32(n) + eps);
    for (var i = local_id.x; i < n; i += 16u) {
        out[out_at + row * n + i] = x[x_at + row * n + i] * scale * weight[weight_at + i];
    }
}
