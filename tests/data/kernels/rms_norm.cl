// rms_norm, GROUP = 16, HAS_WEIGHT = True
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
    const uint local_index = (uint)(get_local_id(0) + 16 * (get_local_id(1) + 1 * get_local_id(2)));
    const uint3 num_groups = (uint3)((uint)get_num_groups(0), (uint)get_num_groups(1), (uint)get_num_groups(2));
    __local float partial[16];
    const uint row = group_id.x + group_id.y * num_groups.x;
    float total = 0.0f;
    for (uint i = local_id.x; i < n; i += 16u) {
        total += x[row * n + i] * x[row * n + i];
    }
    partial[local_index] = total;
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint me = local_index;
    if (me < 4u) {
        float some = partial[me];
        for (uint i = me + 4u; i < 16u; i += 4u) {
            some += partial[i];
        }
        partial[me] = some;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    float result = partial[0u];
    for (uint i = 1u; i < 4u; i += 1u) {
        result += partial[i];
    }
    const float result_1 = result;
    barrier(CLK_LOCAL_MEM_FENCE);
    total = result_1;
    const float scale = 1.0f / sqrt(total / (float)(n) + eps);
    for (uint i = local_id.x; i < n; i += 16u) {
        out[row * n + i] = x[row * n + i] * scale * weight[i];
    }
}
