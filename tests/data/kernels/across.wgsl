// across, GROUP = 12

struct Params {
    out_at: u32,
}
@group(0) @binding(0) var<storage, read_write> out: array<u32>;
@group(0) @binding(1) var<uniform> params: Params;
var<workgroup> one_each: array<u32, 3>;

@compute @workgroup_size(12, 1, 1)
fn across(@builtin(local_invocation_id) local_id: vec3<u32>, @builtin(subgroup_invocation_id) subgroup_lane: u32, @builtin(subgroup_id) subgroup_id: u32, @builtin(num_subgroups) subgroup_count: u32) {
    let out_at = params.out_at;
    let me = local_id.x;
    let subgroup_broadcast = subgroupBroadcast(me, 0u);
    let subgroup_sum = subgroupAdd(1u);
    let first = subgroup_broadcast;
    let lanes = subgroup_sum;
    let last = subgroupMax(me);
    out[out_at + 6u * me] = select(0u, 1u, (first <= me && me <= last));
    let subgroup_sum_1 = subgroupAdd(select(0u, 1u, subgroup_lane == 0u));
    out[out_at + 6u * me + 1u] = subgroup_sum_1;
    var value: u32;
    if (lanes > 1u) {
        let subgroup_xor = subgroupShuffleXor(me, 1u);
        let subgroup_xor_1 = subgroupShuffleXor(subgroup_xor, 1u);
        value = subgroup_xor_1;
    } else {
        value = me;
    }
    out[out_at + 6u * me + 2u] = value;
    let x = select(0u, 1u, subgroup_lane == 0u);
    let inner = subgroupAdd(x);
    if (subgroup_lane == 0u) {
        one_each[subgroup_id] = inner;
    }
    workgroupBarrier();
    var total = one_each[0u];
    for (var i = 1u; i < subgroup_count; i += 1u) {
        total += one_each[i];
    }
    workgroupBarrier();
    out[out_at + 6u * me + 3u] = total - subgroup_count;
    let inner_1 = subgroupMax(subgroup_id);
    if (subgroup_lane == 0u) {
        one_each[subgroup_id] = inner_1;
    }
    workgroupBarrier();
    var total_1 = one_each[0u];
    for (var i = 1u; i < subgroup_count; i += 1u) {
        total_1 = max(total_1, one_each[i]);
    }
    workgroupBarrier();
    out[out_at + 6u * me + 4u] = total_1 + 1u - subgroup_count;
    var reduced = me;
    let subgroup_xor_2 = subgroupShuffleXor(reduced, 2u);
    reduced += subgroup_xor_2;
    let subgroup_xor_3 = subgroupShuffleXor(reduced, 1u);
    reduced += subgroup_xor_3;
    out[out_at + 6u * me + 5u] = reduced;
}
