typedef unsigned short u16; typedef unsigned char u8; typedef unsigned int u32; typedef unsigned long long u64;
struct Args { const void* in[9]; void* out[9]; u64 count; u32 n; };
template<int N> __device__ void reduce(const Args& a){
  u64 stride=(u64)gridDim.x*blockDim.x;
  for(u64 i=(u64)blockIdx.x*blockDim.x+threadIdx.x;i<a.count/4;i+=stride){
    float4 v[N];
    #pragma unroll
    for(int k=0;k<N;k++) v[k]=((const float4*)a.in[k])[i];
    float4 s=v[0];
    #pragma unroll
    for(int k=1;k<N;k++){s.x=__fadd_rn(s.x,v[k].x);s.y=__fadd_rn(s.y,v[k].y);s.z=__fadd_rn(s.z,v[k].z);s.w=__fadd_rn(s.w,v[k].w);}
    s.x=s.x/(float)N;
    #pragma unroll
    for(int k=0;k<N;k++) ((float4*)a.out[k])[i]=s;
  }
}
extern "C" __global__ void red3(const __grid_constant__ Args a){reduce<3>(a);}
extern "C" __global__ void redn(Args a){
  u64 i=(u64)blockIdx.x*blockDim.x+threadIdx.x; if(i>=a.count) return;
  float s=((const float*)a.in[0])[i];
  for(u32 k=1;k<a.n;k++) s+=((const float*)a.in[k])[i];
  s = s>0?s:-s; s=fmaxf(s,1.0f); ((float*)a.out[0])[i]=s/(float)a.n;
  ((double*)a.out[1])[i]=((double)s)/a.n;
  ((long long*)a.out[2])[i]=((long long)s)/(long long)a.n;
  ((int*)a.out[3])[i]=((int)s)%(int)a.n;
  ((u8*)a.out[4])[i]=(u8)((u8)s/(u8)a.n);
  ((signed char*)a.out[5])[i]=(signed char)min((int)((signed char*)a.in[5])[i],3);
}
extern "C" __global__ void tree(const float* x, float* out, u32 n){
  __shared__ float part[32];
  u32 t=threadIdx.x; float s=0; 
  for(u32 i=t;i<n;i+=blockDim.x) s=__fadd_rn(s,x[blockIdx.x*n+i]);
  for(int d=16;d;d>>=1) s=__fadd_rn(s,__shfl_down_sync(~0u,s,d));
  if((t&31)==0) part[t/32]=s;
  __syncthreads();
  if(t<32){ s=part[t]; for(int d=16;d;d>>=1) s=__fadd_rn(s,__shfl_xor_sync(~0u,s,d)); if(t==0) out[blockIdx.x]=s;}
}
__device__ float h2f(u16 h){float f; asm("{ cvt.f32.f16 %0, %1;}":"=f"(f):"h"(h)); return f;}
__device__ u16 f2h(float f){u16 h; asm("{ cvt.rn.f16.f32 %0, %1;}":"=h"(h):"f"(f)); return h;}
extern "C" __global__ void half3(const uint4* a,const uint4* b,uint4* o,u64 n){
  extern __shared__ u32 dyn[];
  u64 i=(u64)blockIdx.x*blockDim.x+threadIdx.x; if(i>=n) return;
  uint4 x=a[i],y=b[i],z; u32*px=&x.x,*py=&y.x,*pz=&z.x;
  #pragma unroll
  for(int k=0;k<4;k++){ pz[k]=f2h(__fadd_rn(h2f(px[k]&0xffff),h2f(py[k]&0xffff)))|(u32)f2h(__fadd_rn(h2f(px[k]>>16),h2f(py[k]>>16)))<<16; }
  o[i]=z; dyn[threadIdx.x]=z.x; __syncthreads(); if(threadIdx.x) o[i].x=dyn[threadIdx.x-1];
}
__constant__ float table[4]={1,2,3,4};
__device__ int counter[3]={7,8,9};
extern "C" __global__ void misc2(int k,u64* o,float* f){
  float loc[16]; for(int i=0;i<16;i++) loc[i]=f[i]; 
  o[0]=__float_as_uint(loc[k]); o[1]=__float_as_uint(table[k&3])+counter[k%3];
  switch(k){case 0:o[2]=5;break;case 1:o[2]=k*77;break;case 2:o[2]=o[3]/3;break;case 3:o[2]=99;break;case 4:o[2]=o[4]*7;break;case 5: o[2]=__popc(k);break; default:o[2]=__clz(k);}
  o[5]=o[6]/o[7]; o[8]=__umul64hi(o[9],o[10]); o[11]=__byte_perm(k,k+1,0x1234); o[12]=__funnelshift_l(k,k,k); 
  f[17]=rintf(f[18]); f[19]=(float)o[13]; f[20]=(float)(long long)o[13]; f[21]=__double2float_rn((double)o[14]); o[15]=__ballot_sync(~0u,k); o[16]=__activemask();
  f[22]=__frcp_rn(f[23]); f[24]=sqrtf(f[25]); f[26]=__fdiv_rn(f[1],f[2]); f[27]=fmaf(f[1],f[2],f[3]);
  o[17]=__syncthreads_or(k); o[18]=f[1]<f[2]&&f[3]==f[4]; o[19]=isnan(f[1]);
}
