// counts_up, GROUP = 8, TOLD = True
typedef struct {
    uint x_at;
    uint out_at;
} Params;

__kernel __attribute__((reqd_work_group_size(8, 1, 1)))
void counts_up(
    __global const uint *x,
    __global float4 *out,
    __constant const Params *params) {
    x += params->x_at;
    out += params->out_at;
    const uint3 local_id = (uint3)((uint)get_local_id(0), (uint)get_local_id(1), (uint)get_local_id(2));
    __local uint shared_1[2];
    __local float shared_2[8];
    const uint me = local_id.x;
    if (me < 2u) {
        shared_1[me] = x[me];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const uint end = shared_1[0u];
    shared_2[me] = (float)(me);
    for (uint unused = 0u; unused < end; unused += 1u) {
        barrier(CLK_LOCAL_MEM_FENCE);
        const float next_one = shared_2[(me + 1u) % 8u];
        barrier(CLK_LOCAL_MEM_FENCE);
        shared_2[me] = next_one;
    }
    const float4 limits = ((float4)((float)(shared_1[0u]), (float)(shared_1[1u]), 0.5f, (float)(end)));
    out[me] = limits + shared_2[me];
}
