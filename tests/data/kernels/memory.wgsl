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
    neighbours[local_id.x] = x[x_at + group_id.x * 8u + local_id.x];
    if (local_id.x < 4u) {
        let old = atomicAdd(&counts[counts_at + 4u], local_id.x + 1u);
    }
    workgroupBarrier(); storageBarrier();
    kept[0u] = neighbours[me % 8u];
    kept[1u] = neighbours[(me + 1u) % 8u];
    kept[2u] = neighbours[(me + 2u) % 8u];
    kept[3u] = neighbours[(me + 3u) % 8u];
    var total = 0.0f;
    for (var k = 0u; k < 4u; k += 1u) {
        total = fma(kept[k], weights[(k + me) % 4u], total);
    }
    let old_1 = atomicAdd(&counts[counts_at + me % 3u], 2u);
    let old_2 = atomicMax(&counts[counts_at + 3u], i * 5u);
    var vector = vec4<f32>(total, x[x_at + i], f32(i), scale) * scale + 1.0f;
    vector.w = vector.y - vector.z;
    partial[local_index] = total;
    workgroupBarrier(); storageBarrier();
    var result = partial[0u];
    for (var i_1 = 1u; i_1 < 8u; i_1 += 1u) {
        result = max(result, partial[i_1]);
    }
    let result_1 = result;
    workgroupBarrier(); storageBarrier();
    let largest = result_1;
    let x_1 = x[x_at + i];
    partial_1[local_index] = x_1;
    workgroupBarrier(); storageBarrier();
    let begin = local_index / 4u * 4u;
    var result_2 = partial_1[begin];
    for (var i_1 = 1u; i_1 < 4u; i_1 += 1u) {
        result_2 += partial_1[begin + i_1];
    }
    let result_3 = result_2;
    workgroupBarrier(); storageBarrier();
    let x_2 = x[x_at + i];
    partial_1[local_index] = x_2;
    workgroupBarrier(); storageBarrier();
    let begin_1 = local_index / 2u * 2u;
    var result_4 = partial_1[begin_1];
    result_4 = max(result_4, partial_1[begin_1 + 1u]);
    let result_5 = result_4;
    workgroupBarrier(); storageBarrier();
    out[out_at + i] = max(vector, vec4<f32>(dot(vector, vector))) - vec4<f32>(largest, result_3, 0.0f, result_5);
}
