// halves, GROUP = 8
typedef struct {
    uint a_at;
    uint b_at;
    uint out_at;
} Params;

__kernel __attribute__((reqd_work_group_size(8, 1, 1)))
void halves(
    __global const half *a,
    __global const half *b,
    __global half *out,
    __constant const Params *params) {
    a += params->a_at;
    b += params->b_at * 4;
    out += params->out_at * 2;
    const uint3 global_id = (uint3)((uint)get_global_id(0), (uint)get_global_id(1), (uint)get_global_id(2));
    const uint i = global_id.x;
    vstore_half2_rte(((float2)(vload_half(i, a) * 2.0f + 0.5f, vload_half4(i, b).z * 2.0f)), i, out);
}
