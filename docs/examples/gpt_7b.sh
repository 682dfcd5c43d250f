#!/bin/bash
# A launch script of Megatron-LM as people have them; docs/export.md reads it.
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NODES=${NODES:-4}
TP=4
MODEL="
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32
    --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope
    --untie-embeddings-and-output-weights --vocab-size 32000
    --seq-length 4096 --max-position-embeddings 4096
"
PARALLEL=(
    --tensor-model-parallel-size $TP --sequence-parallel
    --pipeline-model-parallel-size 2
    --use-distributed-optimizer --overlap-grad-reduce   # parameters are gathered after the step
)
torchrun --nnodes $NODES --nproc_per_node $GPUS_PER_NODE pretrain_gpt.py \
    $MODEL "${PARALLEL[@]}" \
    --micro-batch-size 1 --global-batch-size 256 --bf16 \
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \
    --attention-dropout 0 --hidden-dropout 0 \
    --lr 3e-4 --train-iters 100000 --data-path $1 --defer-embedding-wgrad-compute
