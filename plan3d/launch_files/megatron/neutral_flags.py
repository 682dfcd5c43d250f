"""Flags of Megatron-LM without effect on the model, the time or the memory of a step, by reason.

`name*` is every flag that begins so.
Source: as of other_flags.
"""

NEUTRAL = {
    "inference": """
    bert-embedder-type cloze-eval decode-only-cuda-graphs ds-inference disable-chunked-prefill
    enable-chunked-prefill eval-* flash-decode generation-length inference inference-* input-len
    mamba-inference-conv-states-dtype mamba-inference-ssm-states-dtype max-tokens-to-oom
    mlp-chunks-for-prefill nccl-all-reduce-for-prefill num-fewshot num-speculative-tokens
    online-evaluation-config out-seq-length output-bert-embeddings overlapping-eval prompt-path
    repetition-penalty report-topk-accuracies task-list temperature text-generate-* time top-k top-p
    use-legacy-static-engine use-same-sampling-seed-across-dp-ranks verbosity
    """,
    "checkpoints, which are saved outside of a step": """
    async-ckpt-cpu-priority async-ckpt-io-priority async-ckpt-use-cpu-shm async-save async-strategy
    auto-detect-ckpt-format ckpt-* convert-checkpoint-from-megatron-to-transformers dataloader-save
    dist-ckpt-* distrib-optim-fully-reshardable-mem-efficient enable-hf2mg-convert
    exit-on-missing-checkpoint export-huggingface finetune hf-ckpt-* load load-huggingface
    load-main-params-from-ckpt load-model-opt-format load-mode load-openai load-tag
    no-ckpt-fully-parallel-save no-ckpt-load-validate-sharding-integrity no-fully-parallel-save
    no-load-lr-state no-load-optim no-load-rng no-save-optim no-save-rng no-save-tokenizer-assets
    no-strict-fsdp-dtensor-load no-use-tokenizer-model-from-checkpoint-args non-persistent-*
    origin-hf-ckpt-dir override-ckpt-iteration persistent-save-interval pretrained-checkpoint
    replication replication-factor replication-jump save save-activations-interval
    save-dgrads-interval save-interval save-params-interval save-retain-interval
    save-tokenizer-assets save-tokens-per-expert-interval save-wgrads-interval stream-ckpt-dequant
    strict-fsdp-dtensor-load to-hf-ckpt universal-checkpoint use-checkpoint-lr-scheduler
    use-dist-ckpt use-mp-args-from-checkpoint-args use-persistent-ckpt-worker
    use-tokenizer-model-from-checkpoint-args verify-integrity
    """,
    "data and its loader": """
    allow-ambiguous-pad-tokens aml-data-download-path cache-prefix data-args-path data-base-path
    data-cache-path data-dir data-file-list data-impl data-path dataloader-defer-npy-index-mmap
    dataloader-fast-cache-load dataloader-seq-length dataloader-type dataset dataset-config delim
    disable-msc enable-msc encoder-seq-length eod-mask-loss epochs extra-vocab-size fim-*
    fragment-fim-rate goldfish-h goldfish-k handler-name image-aspect-ratio image-tag-type
    input-data-sizes-file is-instruction-dataset keep-last lazy-loader loose-json mask-prob
    max-files-per-process max-padding-length max-preds-per-seq mid-level-dataset-surplus
    mm-use-im-patch-token mm-use-im-start-end mmap-warmup mock-data n-chunks
    no-create-attention-mask-in-dataloader no-mmap-bin-files no-pad-to-seq-lengths no-shuffle
    num-dataset-builder-threads num-workers object-storage-cache-path padded-samples
    patch-tokenizer-type per-dataset-sequences-path per-split-data-args-path
    phase-transition-iterations presplit-sentences prompt-type repeated-dataloader
    renormalize-blend-weights resume-dataloader retriever-* return-data-index s3-cache-path
    sample-rate sanity-check-dataloader-interval short-seq-prob shuffle source-seq-len
    special-tokens split target-seq-len test-data test-data-* test-weighted-* text-key tokenizer-*
    train-data train-data-* train-desc-path train-doc-idx-path train-idx-path train-sample-idx-path
    train-shuffle-idx-path train-tokens train-weighted-* use-dataset-only use-npy-data-loader
    use-tfrecords val-data-path valid-data valid-data-* valid-num-workers valid-weighted-* version
    """,
    "the tokenizer": """
    chat-template legacy-tokenizer make-vocab-size-divisible-by merge-file no-pad-vocab-size
    no-tokenizer-sentencepiece-ignore-extra-whitespaces null-tokenizer-* pad-vocab-size
    padded-vocab-size tiktoken-* trust-remote-code use-gigatoken vocab-extra-ids vocab-file
    """,
    "logs and profiles": """
    app-tag-run-name app-tag-run-version codecarbon-dir config-logger-dir
    disable-straggler-on-startup dump-param-to-param-group-map job-name log-* logging-dir
    logging-level memory-snapshot-path moe-per-layer-logging moe-routing-trace-*
    no-barrier-with-L1-time no-barrier-with-level-1-timing no-log-learnig-rate-to-tensorboard
    no-log-loss-scale-to-tensorboard no-one-logger nvtx-ranges one-logger-* otel-* profile
    profile-ranks profile-step-end profile-step-start pytorch-profiler-* record-memory-history
    record-shapes run-workload-inspector-server straggler-* structured-logs structured-logs-dir
    tensorboard-* timing-log-level timing-log-option transformer-timers use-mpi use-pytorch-profiler
    use-wandb wandb-*
    """,
    "learning rate and the hyperparameters of the optimizer": """
    adam-beta1 adam-beta2 adam-eps ademamix-* apply-wd-to-qk-layernorm decoupled-lr
    decoupled-min-lr end-weight-decay lion-* lr lr-* min-lr muon-* no-weight-decay-cond-type
    override-lr-scheduler override-opt-param-scheduler override-opt_param-scheduler sgd-momentum
    start-weight-decay use-checkpoint-opt-param-scheduler use-checkpoint-opt_param-scheduler
    warmup wd-incr-steps weight-decay weight-decay-incr-style wsd-decay-steps
    """,
    "evaluation outside of a step": """
    full-validation multiple-validation-sets skip-train start-eval-at-iter test-mode
    validation-set-names
    """,
    "the length of the run, and what ends, repeats or restarts it": """
    abort-on-unmet-fused-kernel-constraints adlr-autoresume adlr-autoresume-interval
    calc-ft-timeouts check-for-large-grads check-for-spiky-loss enable-ft-package
    error-injection-rate error-injection-type exit-duration-in-mins exit-interval exit-signal
    exit-signal-handler exit-signal-handler-for-dataloader exit-signal-handler-for-training
    fault-injector-* ft-* gpu-sniff-test-interval inprocess-* iterations-to-skip
    kill-switch-path manual-gc manual-gc-eval manual-gc-interval
    no-check-for-nan-in-loss-and-grad no-manual-gc-eval rerun-* reset-progress
    result-rejected-tracker-filename skip-train-iteration-range train-iters train-samples
    train-sync-interval trigger-path z-loss-strength
    """,
    "kernels that newer versions fuse unless told otherwise": """
    bias-dropout-fusion bias-gelu-fusion scaled-masked-softmax-fusion
    scaled-upper-triang-masked-softmax-fusion
    """,
    "set-up of processes": """
    ai-framework align-grad-reduce ddp-average-in-collective
    ddp-param-name-patterns-for-fp32-local-accumulation disable-gloo-group
    disable-gloo-process-groups distributed-backend distributed-timeout
    distributed-timeout-minutes distributed-timeout-seconds-after-init fake-process-group
    flight-recorder-* fsdp-manual-registration gtp-expert-remat-nccl-ub gtp-remat-nccl-*
    gtp-remat-reduce-scatter-with-fp32-accumulation high-priority-stream-groups lazy-mpu-init
    local-rank local_rank megatron-fsdp-version model-type-hf
    no-flight-recorder-dump-on-timeout no-flight-recorder-extra-dump-on-exec
    no-flight-recorder-include-only-active no-gradient-reduce-div-fusion
    no-use-gloo-process-groups no-use-layer-wise-param-layout rank sharp-enabled-group
    sync-tp-duplicated-parameters world-size
    """,
    "initial weights and seeds": """
    cuda-graph-warmup-steps data-parallel-random-init deep-init embedding-init-method-std
    init-method-std init-method-xavier-uniform init-model-with-meta-device init-norm-weight-in-fp32
    layernorm-init mhc-init-gating-factor mup mup-attn-mult mup-attn-scale-power mup-base-head-dim
    mup-base-hidden-size mup-embedding-mult mup-input-mult mup-output-mult mup-width-mult
    no-initialization no-perform-initialization seed te-rng-tracker use-cpu-initialization use-mup
    """,
    "router scores and losses": """
    create-moe-param-group fix-router moe-apply-probs-on-input moe-aux-loss-coeff
    moe-enable-routing-replay moe-eval-capacity-factor moe-input-jitter-eps moe-loss-coeff
    moe-min-capacity moe-mlp-glu-interleave-size moe-pad-experts-for-cuda-graph-inference
    moe-paged-stash-buffer-size-factor-cpu moe-paged-stash-buffer-size-factor-cuda
    moe-paged-stash-page-size moe-router-bias-update-rate moe-router-dtype
    moe-router-enable-expert-bias moe-router-load-balancing-type moe-router-pre-softmax
    moe-router-quantile-balancing-ema moe-router-score-function moe-router-topk-scaling-factor
    moe-shared-expert-glu-interleave-size moe-single-grouped-bias moe-token-drop-policy
    moe-upcycling-granularity moe-use-upcycling moe-z-loss-coeff norm-topk-prob router-type
    seq-aux
    """,
    "scales, losses and numbers of the same size": """
    accumulate-allreduce-grads-in-fp32 activation-func-clamp-value apply-layernorm-1p
    apply-query-key-layer-scaling apply-residual-connection-post-layernorm attention-softmax-in-fp32
    attn-logit-softcapping batch-invariant-backend disable-bf16-reduced-precision-matmul
    dsa-indexer-k-norm-epsilon enable-mla-scale-kv-lora enable-mla-scale-q-lora
    fp8-amax-compute-algo fp8-amax-history-len fp8-interval fp8-margin fp8-wgrad glu-linear-offset
    hysteresis initial-loss-scale layernorm-epsilon logits-load-* logits-save-* loss-on-targets-only
    loss-scale loss-scale-window mamba-training-ssm-states-dtype min-loss-scale min-scale mscale
    mscale-all-dim mtp-detach-heads mtp-hsm mtp-loss-scaling-factor no-query-key-layer-scaling
    norm-epsilon norm-target-loss output-logit-softcapping qk-clip-alpha qk-clip-threshold
    query-pre-attn-scalar rotary-interleaved rotary-scaling-factor z-loss-weight
    """,
    "the form of positions and activation functions, of the same sizes": """
    add-rmsnorm-offset bert-no-binary-head beta-fast beta-slow dsa-indexer-rope-interleaved
    gelu-tanh high-freq-factor input-embeddings-multiplier long-factor longrope-freqs-type
    low-freq-factor mrope-section no-rope-freq no-yarn-correction-range-round-to-int onnx-safe
    openai-gelu original-max-position-embeddings qknorm-impl relative-attention-max-distance
    relative-attention-num-buckets rope-scaling-factor rope-scaling-mscale
    rope-scaling-mscale-all-dim rope-scaling-original-max-position-embeddings rope-scaling-type
    rotary-percent rotary-scale-factor rotary-seq-len-interpolation-factor rotary-theta
    short-factor squared-relu use-glm-rope use-rope-scaling xielu xiprelu xiprelup
    yarn-beta-fast yarn-beta-slow yarn-correction-range-round-to-int
    yarn-original-max-position-embeddings
    """,
    "what has an effect only with other flags": """
    bert-load biencoder-shared-query-context-model block-data-path classes-fraction
    data-per-class-fraction dino-* dsa-indexer-k-norm-fp32 dsa-indexer-loss-coeff
    dsa-indexer-rotate-activation dsa-indexer-scoring-relu dsa-indexer-skip-topk-offset
    dsa-indexer-topk-freq dsa-indexer-use-sparse-loss dsa-kernel-backend embedding-path
    evidence-data-path export-force-local-attention export-kd-finalize export-kv-cache-quant
    export-legacy-megatron export-model-type export-quant-cfg export-real-quant-cfg
    finetune-hf-dataset gdp-cutedsl-kernel gdp-num-chunk-states-to-recompute grpo-*
    head-lr-mult hidden-size-teacher ict-load indexer-* iter-per-epoch kd-alpha-ce kd-beta-ce
    kd-temp kitchen-attention-backend langrl-* mask-factor mask-type
    mhc-num-residual-streams mhc-sinkhorn-iterations no-data-sharding
    no-dsa-indexer-rotate-activation no-dsa-indexer-scoring-relu num-attention-heads-teacher
    num-classes num-experts-switch num-experts-teacher query-in-block-prob refit-method
    reset-iteration retro-* rl-* sft-tokenizer-prompt-format swin-* titles-data-path
    tp-comm-bootstrap-backend tp-comm-bulk-dgrad tp-comm-bulk-wgrad tp-comm-overlap-ag
    tp-comm-overlap-rs tp-comm-split-ag tp-comm-split-rs use-one-sent-docs
    """,
    "the implementation that is modelled": """
    clone-scatter-output-in-embedding rope-type use-flash-attn use-flash-attn-v1 use-flash-attn-v2
    use-fused-moe-token-permute-and-unpermute use-fused-ring-attention-update use-fused-rmsnorm
    use-fused-rotary-pos-emb use-fused-swiglu use-mcore-models use-te
    """,
}
"""Names without dashes in front, by what the flags set."""
