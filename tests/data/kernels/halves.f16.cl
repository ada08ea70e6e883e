// halves, GROUP = 8
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
typedef struct {
    uint a_at;
    uint b_at;
    uint out_at;
} Params;

__kernel __attribute__((reqd_work_group_size(8, 1, 1)))
void halves(
    __global const half *a,
    __global const half4 *b,
    __global half2 *out,
    __constant const Params *params) {
    a += params->a_at;
    b += params->b_at;
    out += params->out_at;
    const uint3 global_id = (uint3)((uint)get_global_id(0), (uint)get_global_id(1), (uint)get_global_id(2));
    const uint i = global_id.x;
    out[i] = ((half2)(a[i] * 2.0h + 0.5h, b[i].z * 2.0h));
}
