// memory, GROUP = 8, KEPT = 4

struct Params {
    scale: f32,
    x_at: u32,
    counts_at: u32,
    out_at: u32,
}
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> counts: array<atomic<u32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(3) var<uniform> params: Params;
var<workgroup> neighbours: array<f32, 8>;
var<workgroup> partial: array<f32, 8>;
var<workgroup> partial_1: array<f32, 8>;
const weights = array<f32, 4>(0.5f, -1.0f, 2.0f, 0.25f);

@compute @workgroup_size(8, 1, 1)
fn memory(@builtin(workgroup_id) group_id: vec3<u32>, @builtin(local_invocation_id) local_id: vec3<u32>, @builtin(local_invocation_index) local_index: u32) {
    let scale = params.scale;
    let x_at = params.x_at;
    let counts_at = params.counts_at;
    let out_at = params.out_at;
    var kept: array<f32, 4>;
    let me = local_id.x;
    let i = group_id.x * 8u + me;
    neighbours[me] = x[x_at + i];
    workgroupBarrier(); storageBarrier();
    kept[0u] = neighbours[me % 8u];
    kept[1u] = neighbours[(me + 1u) % 8u];
    kept[2u] = neighbours[(me + 2u) % 8u];
    kept[3u] = neighbours[(me + 3u) % 8u];
    var total = 0.0f;
    for (var k = 0u; k < 4u; k += 1u) {
        total = fma(kept[k], weights[(k + me) % 4u], total);
    }
    let old = atomicAdd(&counts[counts_at + me % 3u], 2u);
    let old_1 = atomicMax(&counts[counts_at + 3u], i * 5u);
    var vector = vec4<f32>(total, x[x_at + i], f32(i), scale) * vec4<f32>(scale) + vec4<f32>(1.0f);
    vector.w = vector.y - vector.z;
    let x_1 = total;
    let me_1 = local_index;
    partial[me_1] = x_1;
    workgroupBarrier(); storageBarrier();
    if (me_1 < 4u) {
        let a = partial[me_1];
        let b = partial[me_1 + 4u];
        partial[me_1] = max(a, b);
    }
    workgroupBarrier(); storageBarrier();
    if (me_1 < 2u) {
        let a_1 = partial[me_1];
        let b_1 = partial[me_1 + 2u];
        partial[me_1] = max(a_1, b_1);
    }
    workgroupBarrier(); storageBarrier();
    if (me_1 < 1u) {
        let a_2 = partial[me_1];
        let b_2 = partial[me_1 + 1u];
        partial[me_1] = max(a_2, b_2);
    }
    workgroupBarrier(); storageBarrier();
    let result = partial[0u];
    workgroupBarrier(); storageBarrier();
    let largest = result;
    let value = max(vector, vec4<f32>(dot(vector, vector)));
    let x_2 = x[x_at + i];
    let me_2 = local_index;
    partial_1[me_2] = x_2;
    workgroupBarrier(); storageBarrier();
    if (me_2 % 4u < 2u) {
        let a_3 = partial_1[me_2];
        let b_3 = partial_1[me_2 + 2u];
        partial_1[me_2] = a_3 + b_3;
    }
    workgroupBarrier(); storageBarrier();
    if (me_2 % 4u < 1u) {
        let a_4 = partial_1[me_2];
        let b_4 = partial_1[me_2 + 1u];
        partial_1[me_2] = a_4 + b_4;
    }
    workgroupBarrier(); storageBarrier();
    let result_1 = partial_1[me_2 / 4u * 4u];
    workgroupBarrier(); storageBarrier();
    let x_3 = x[x_at + i];
    let me_3 = local_index;
    partial_1[me_3] = x_3;
    workgroupBarrier(); storageBarrier();
    if (me_3 % 2u < 1u) {
        let a_5 = partial_1[me_3];
        let b_5 = partial_1[me_3 + 1u];
        partial_1[me_3] = max(a_5, b_5);
    }
    workgroupBarrier(); storageBarrier();
    let result_2 = partial_1[me_3 / 2u * 2u];
    workgroupBarrier(); storageBarrier();
    out[out_at + i] = value - vec4<f32>(largest, result_1, 0.0f, result_2);
}
