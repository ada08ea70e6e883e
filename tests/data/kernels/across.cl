// across, GROUP = 12
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#pragma OPENCL EXTENSION cl_khr_subgroup_shuffle : enable
typedef struct {
    uint out_at;
} Params;

__kernel __attribute__((reqd_work_group_size(12, 1, 1)))
void across(
    __global uint *out,
    __constant const Params *params) {
    out += params->out_at;
    const uint3 local_id = (uint3)((uint)get_local_id(0), (uint)get_local_id(1), (uint)get_local_id(2));
    const uint subgroup_count = get_num_sub_groups();
    const uint subgroup_id = get_sub_group_id();
    const uint subgroup_lane = get_sub_group_local_id();
    __local uint one_each[3];
    const uint me = local_id.x;
    const uint subgroup_broadcast = sub_group_broadcast(me, 0u);
    const uint subgroup_sum = sub_group_reduce_add(1u);
    const uint first = subgroup_broadcast;
    const uint lanes = subgroup_sum;
    const uint last = sub_group_reduce_max(me);
    out[6u * me] = ((first <= me && me <= last) ? 1u : 0u);
    const uint subgroup_sum_1 = sub_group_reduce_add((subgroup_lane == 0u ? 1u : 0u));
    out[6u * me + 1u] = subgroup_sum_1;
    uint value = 0u;
    if (lanes > 1u) {
        const uint subgroup_xor = sub_group_shuffle_xor(me, 1u);
        const uint subgroup_xor_1 = sub_group_shuffle_xor(subgroup_xor, 1u);
        value = subgroup_xor_1;
    } else {
        value = me;
    }
    out[6u * me + 2u] = value;
    const uint x = (subgroup_lane == 0u ? 1u : 0u);
    const uint inner = sub_group_reduce_add(x);
    if (subgroup_lane == 0u) {
        one_each[subgroup_id] = inner;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    uint total = one_each[0u];
    for (uint i = 1u; i < subgroup_count; i += 1u) {
        total += one_each[i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    out[6u * me + 3u] = total - subgroup_count;
    const uint inner_1 = sub_group_reduce_max(subgroup_id);
    if (subgroup_lane == 0u) {
        one_each[subgroup_id] = inner_1;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    uint total_1 = one_each[0u];
    for (uint i = 1u; i < subgroup_count; i += 1u) {
        total_1 = max(total_1, one_each[i]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    out[6u * me + 4u] = total_1 + 1u - subgroup_count;
    uint reduced = me;
    const uint subgroup_xor_2 = sub_group_shuffle_xor(reduced, 2u);
    reduced += subgroup_xor_2;
    const uint subgroup_xor_3 = sub_group_shuffle_xor(reduced, 1u);
    reduced += subgroup_xor_3;
    out[6u * me + 5u] = reduced;
}
