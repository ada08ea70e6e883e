// memory, GROUP = 8, KEPT = 4
typedef struct {
    float scale;
    uint x_at;
    uint counts_at;
    uint out_at;
} Params;
__constant float weights[4] = {0.5f, -1.0f, 2.0f, 0.25f};

__kernel __attribute__((reqd_work_group_size(8, 1, 1)))
void memory(
    __global const float *x,
    __global volatile uint *counts,
    __global float4 *out,
    __constant const Params *params) {
    const float scale = params->scale;
    x += params->x_at;
    counts += params->counts_at;
    out += params->out_at;
    const uint3 group_id = (uint3)((uint)get_group_id(0), (uint)get_group_id(1), (uint)get_group_id(2));
    const uint3 local_id = (uint3)((uint)get_local_id(0), (uint)get_local_id(1), (uint)get_local_id(2));
    const uint local_index = (uint)(get_local_id(0) + 8 * (get_local_id(1) + 1 * get_local_id(2)));
    __local float neighbours[8];
    float kept[4];
    __local float partial[8];
    __local float partial_1[8];
    const uint me = local_id.x;
    const uint i = group_id.x * 8u + me;
    neighbours[local_id.x] = x[group_id.x * 8u + local_id.x];
    if (local_id.x < 4u) {
        const uint old = atomic_add(&counts[4u], local_id.x + 1u);
    }
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    kept[0u] = neighbours[me % 8u];
    kept[1u] = neighbours[(me + 1u) % 8u];
    kept[2u] = neighbours[(me + 2u) % 8u];
    kept[3u] = neighbours[(me + 3u) % 8u];
    float total = 0.0f;
    for (uint k = 0u; k < 4u; k += 1u) {
        total = fma(kept[k], weights[(k + me) % 4u], total);
    }
    const uint old_1 = atomic_add(&counts[me % 3u], 2u);
    const uint old_2 = atomic_max(&counts[3u], i * 5u);
    float4 vector = ((float4)(total, x[i], (float)(i), scale)) * scale + 1.0f;
    vector.w = vector.y - vector.z;
    partial[local_index] = total;
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    float result = partial[0u];
    for (uint i_1 = 1u; i_1 < 8u; i_1 += 1u) {
        result = fmax(result, partial[i_1]);
    }
    const float result_1 = result;
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    const float largest = result_1;
    const float x_1 = x[i];
    partial_1[local_index] = x_1;
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    const uint begin = local_index / 4u * 4u;
    float result_2 = partial_1[begin];
    for (uint i_1 = 1u; i_1 < 4u; i_1 += 1u) {
        result_2 += partial_1[begin + i_1];
    }
    const float result_3 = result_2;
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    const float x_2 = x[i];
    partial_1[local_index] = x_2;
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    const uint begin_1 = local_index / 2u * 2u;
    float result_4 = partial_1[begin_1];
    result_4 = fmax(result_4, partial_1[begin_1 + 1u]);
    const float result_5 = result_4;
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
    out[i] = fmax(vector, ((float4)(dot(vector, vector)))) - ((float4)(largest, result_3, 0.0f, result_5));
}
