"""Arguments of Primus that no row reads and that Megatron-LM has not, or reads by rows: what each
of them changes.

Source: Primus, primus/configs/modules/megatron (trainer_base.yaml, primus_turbo.yaml,
primus_pipeline.yaml, zero_bubble.yaml) and primus/configs/models/megatron/language_model.yaml.
"""

from __future__ import annotations

from ..tables import Effect, Table, group, neutral

OTHERS: Table = (
    *group(
        Effect.COST,
        "time or memory",
        """
        apply_rope_fusion=true async_tensor_model_parallel_allreduce=true bias_dropout_fusion=true
        bias_gelu_fusion=true bias_swiglu_fusion=true cpu_offload data_parallel_replicate_degree=1
        enable_odc enable_turbo_attention_float8 fp4_param gradient_reduce_div_fusion=true
        masked_softmax_fusion=true microbatch_group_size_per_vp_stage moe_grouped_gemm=true
        moe_use_fused_router_with_aux_score moe_use_legacy_grouped_gemm
        no_fp8_weight_transpose_cache num_seq_splits=1
        num_distributed_optimizer_instances=1 offload overlap_cpu_optimizer_d2h_h2d
        patch_moe_overlap scatter_gather_tensors_in_pipeline=true
        turbo_grouped_gemm_without_padding use_custom_fsdp use_sink_attention
        use_turbo_fused_act_with_probs use_turbo_grouped_mlp use_turbo_norm_te_linear weight_deosc
        """,
    ),
    *neutral(
        "what has an effect only with other keys",
        """
        align_param_gather allow_padding_num_layers auto_offload_time communication_method
        ddp_bucket_size debug_scheduler_table enable_1f1b_v enable_exactly_numeric_match
        enable_optimizer_post_validation enable_primus_turbo enable_zb_runtime enable_zero_bubble
        interleave_group_size moe_flex_dispatcher_backend
        moe_router_force_load_balancing_type odc_* offload_* pin_cpu_grads pin_cpu_params
        pp_algorithm pp_cost_* pp_max_mem pre_communication_optimization sink_sliding_window
        sink_window_even_layers_only turbo_* use_turbo_autotune weight_deosc_* zero_bubble_*
        """,
    ),
    *neutral(
        "numbers of the same size, and the length of positions",
        """
        activation_func mxfp4_gradient_stochastic_rounding max_position_embeddings
        rotary_base rotary_percent use_rotary_position_embeddings
        check_for_nan_in_loss_and_grad perform_initialization moe_token_dropping
        """,
    ),
    *neutral(
        "logs, checkpoints, data and set-up of processes",
        """
        auto_continue_train barrier_with_L1_time bert_binary_head
        create_attention_mask_in_dataloader data_sharding dataloader_mp_context
        decoder_seq_length deprecated_use_mcore_models disable_compile_dependencies
        disable_last_saving disable_mlflow disable_profiler_activity_cpu disable_tensorboard
        disable_wandb dump_pp_data enable_gloo_process_groups enable_one_logger
        generate_tracelens_report mlflow_* mmap_bin_files mock_dataset model_type pp_warmup
        profile_memory_iter stderr_sink_level torch_profiler_* trainable use_dist_ckpt_deprecated
        use_rocm_mem_info use_rocm_mem_info_iters wall_clock_step_timer
        """,
    ),
)
