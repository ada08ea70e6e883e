// rms_norm, GROUP = 16, HAS_WEIGHT = True
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
typedef struct {
    uint n;
    float eps;
    uint x_at;
    uint weight_at;
    uint out_at;
} Params;

__kernel __attribute__((reqd_work_group_size(16, 1, 1)))
void rms_norm(
    __global const float *x,
    __global const float *weight,
    __global float *out,
    __constant const Params *params) {
    const uint n = params->n;
    const float eps = params->eps;
    x += params->x_at;
    weight += params->weight_at;
    out += params->out_at;
    const uint3 group_id = (uint3)((uint)get_group_id(0), (uint)get_group_id(1), (uint)get_group_id(2));
    const uint3 local_id = (uint3)((uint)get_local_id(0), (uint)get_local_id(1), (uint)get_local_id(2));
    const uint3 num_groups = (uint3)((uint)get_num_groups(0), (uint)get_num_groups(1), (uint)get_num_groups(2));
    const uint subgroup_count = get_num_sub_groups();
    const uint subgroup_id = get_sub_group_id();
    const uint subgroup_lane = get_sub_group_local_id();
    __local float one_each[4];
    const uint row = group_id.x + group_id.y * num_groups.x;
    float total = 0.0f;
    for (uint i = local_id.x; i < n; i += 16u) {
        total += x[row * n + i] * x[row * n + i];
    }
    const float inner = sub_group_reduce_add(total);
    if (subgroup_lane == 0u) {
        one_each[subgroup_id] = inner;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float total_1 = one_each[0u];
    for (uint i = 1u; i < subgroup_count; i += 1u) {
        total_1 += one_each[i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    total = total_1;
    const float scale = 1.0f / sqrt(total / (float)(n) + eps);
    for (uint i = local_id.x; i < n; i += 16u) {
        out[row * n + i] = x[row * n + i] * scale * weight[i];
    }
}
