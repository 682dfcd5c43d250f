"""Arguments of programs on Hugging Face's Trainer that no row reads: what each of them changes.

The classes and the syntax are those of `tables.group` and `tables.neutral`; the rows of a program
stand before those of all of them.
Source: transformers 4.57 and 5.15, training_args.py; trl 0.24, SFTConfig and ModelConfig;
LLaMA-Factory 0.9.5, src/llamafactory/hparams; axolotl 0.18, src/axolotl/utils/schemas and
integrations/*/args.py; ms-swift 4.5, swift/arguments and swift/trainers/arguments.py; accelerate
1.14, commands/launch.py.
"""

from __future__ import annotations

from typing import NamedTuple

from ..tables import Effect, Entry, Table, group, neutral

TRAINERS = "trainer llama-factory axolotl ms-swift"
"""Programs on Hugging Face's Trainer."""


OWN_TOWER = "parts of the model for images, if it has any, which are left out"
"""What is said only of models that are not known by name: those are text models."""


class Arguments(NamedTuple):
    """Arguments of some programs with the same effect."""

    programs: str
    effect: Effect
    what: str
    keys: str


ARGUMENTS = (
    Arguments(
        "llama-factory",
        Effect.MODEL,
        "it trains only layers that it adds (LLaMA Pro)",
        "use_llama_pro",
    ),
    Arguments(
        "llama-factory",
        Effect.MODEL,
        "some tokens pass by layers",
        "mixture_of_depths",
    ),
    Arguments(
        "llama-factory",
        Effect.MODEL,
        "another framework trains (Megatron-Core, HyperParallel or KTransformers)",
        "use_hyper_parallel use_kt use_mca",
    ),
    Arguments(
        "axolotl",
        Effect.MODEL,
        "it changes the layers of the model that is named",
        "dense_mixer overrides_of_model_config peft_layer_replication use_onebitllms",
    ),
    Arguments("axolotl", Effect.MODEL, "its adapters are those of MoRA", "use_mora"),
    Arguments(
        "axolotl",
        Effect.MODEL,
        "its steps run elsewhere, or have rollouts",
        "ebft hatchery nemo_gym_enabled",
    ),
    Arguments(
        "ms-swift",
        Effect.MODEL,
        "give the matrices as target_modules",
        "target_regex",
    ),
    Arguments(
        TRAINERS,
        Effect.PART,
        "a vision tower, which is left out",
        """
        clip_path dynamic_image_size force_image_size image_encoder_name_or_path image_folder
        image_size mm_projector_type processor_type vision_path vision_select_layer
        vision_tower
        """,
    ),
    Arguments(
        "llama-factory",
        Effect.PART,
        OWN_TOWER,
        """
        freeze_multi_modal_projector= freeze_vision_tower= image_max_pixels image_min_pixels
        image_resolution train_mm_proj_only video_fps video_max_pixels video_maxlen
        video_min_pixels video_resolution visual_inputs
        """,
    ),
    Arguments(
        "ms-swift",
        Effect.PART,
        OWN_TOWER,
        """
        aligner_lr freeze_aligner= freeze_vit= max_pixels rescale_image=-1
        vit_gradient_checkpointing= vit_lr vit_use_gc=
        """,
    ),
    Arguments(
        TRAINERS,
        Effect.PART,
        "frozen parts, which are taken as trained",
        """
        freeze_backbone freeze_mm_mlp_adapter freeze_mm_modules mm_tunable_parts
        tune_mm_mlp_adapter
        """,
    ),
    Arguments(
        "trainer",
        Effect.PART,
        "frozen parts, which are taken as trained",
        "freeze_llm freeze_mlp tune_language_model=true tune_mm_projector=true",
    ),
    Arguments(
        "trainer",
        Effect.PART,
        "a vision tower, which is left out",
        "tune_vision_tower=",
    ),
    Arguments(
        "trainer",
        Effect.PART,
        "a vision tower, which is left out",
        "vis_proj vision_model_name_or_path",
    ),
    Arguments("trainer", Effect.MODEL, "give --model config.json", "config_overrides"),
    Arguments("trainer", Effect.COST, "time or memory", "random_ltd"),
    Arguments(
        "trainer",
        Effect.NONE,
        "data",
        """
        cache_dir config_name data_output_path data_split keep_linebreaks max_eval_samples
        max_train_samples pad_to_max_length streaming token tokenizer_name train_file
        use_auth_token validation_file validation_split_percentage
        """,
    ),
    Arguments(
        "trainer",
        Effect.NONE,
        "logs, checkpoints, evaluation and the length of the run",
        "enable_tensorboard max_train_steps num_warmup_steps print_loss tensorboard_path",
    ),
    Arguments(
        "accelerate",
        Effect.COST,
        "time or memory",
        """
        cpu downcast_bf16=no dynamo_config.dynamo_backend=no dynamo_config.dynamo_mode=default
        dynamo_config.dynamo_use_dynamic dynamo_config.dynamo_use_fullgraph
        dynamo_config.dynamo_use_regional_compilation fp8_config ipex_config
        megatron_lm_config.megatron_lm_attention_backend=auto,flash,fused
        megatron_lm_config.megatron_lm_attention_dropout=0,0.0
        megatron_lm_config.megatron_lm_calculate_per_token_loss
        megatron_lm_config.megatron_lm_decoder_last_pipeline_num_layers
        megatron_lm_config.megatron_lm_hidden_dropout=0,0.0
        megatron_lm_config.megatron_lm_optimizer_cpu_offload
        megatron_lm_config.megatron_lm_overlap_cpu_optimizer_d2h_h2d
        megatron_lm_config.megatron_lm_recompute_method
        megatron_lm_config.megatron_lm_recompute_num_layers
        megatron_lm_config.megatron_lm_use_custom_fsdp
        megatron_lm_config.megatron_lm_use_precision_aware_optimizer parallelism_config
        parallelism_config.parallelism_config_cp_backend=torch
        parallelism_config.parallelism_config_sp_backend=deepspeed use_cpu
        """,
    ),
    Arguments(
        "accelerate",
        Effect.NONE,
        "set-up of processes and loading",
        """
        aws_* command_file commands compute_environment deepspeed_config dynamo_backend="NO"
        enable_cpu_affinity env gpu_ids log_dir machine_rank main_process_ip main_process_port
        main_training_function max_restarts monitor_interval mpirun_* no_python no_tpu_cluster
        num_cpu_threads_per_process num_machines parallelism_config.parallelism_config_sp_attn*
        parallelism_config.parallelism_config_sp_seq* quiet rdzv_* role same_network tee tpu_*
        use_parallelism_config vm
        """,
    ),
    Arguments(
        "accelerate",
        Effect.NONE,
        "numbers of the same size",
        """
        megatron_lm_config.megatron_lm_attention_softmax_in_fp32
        megatron_lm_config.megatron_lm_eod_mask_loss
        megatron_lm_config.megatron_lm_gradient_clipping
        megatron_lm_config.megatron_lm_no_load_optim megatron_lm_config.megatron_lm_no_save_optim
        megatron_lm_config.megatron_lm_use_rotary_position_embeddings
        """,
    ),
    Arguments(
        TRAINERS,
        Effect.COST,
        "time or memory",
        """
        accelerator_config.gradient_accumulation_kwargs accelerator_config.split_batches
        activation_offloading auto_find_batch_size ddp_backend=nccl ddp_bucket_cap_mb
        experts_implementation=grouped_mm flash_attn_cross_entropy flash_attn_fuse_mlp
        flash_attn_fuse_qkv flash_attn_rms_norm flex_attention fp16_backend=auto,amp
        fp8_backend=auto fp8_enable_fsdp_float8_all_gather fsdp_config
        fsdp_config.backward_prefetch=backward_pre fsdp_config.cpu_offload_pin_memory=true
        fsdp_config.forward_prefetch fsdp_config.fsdp_backward_prefetch=backward_pre
        fsdp_config.fsdp_forward_prefetch fsdp_config.fsdp_limit_all_gathers=true
        fsdp_config.fsdp_min_num_params=0 fsdp_config.limit_all_gathers=true
        fsdp_config.min_num_params=0 fsdp_config.mixed_precision_policy fsdp_config.xla
        fsdp_min_num_params=0 full_determinism fused_attn_kernel group_by_length
        group_by_modality_length half_precision_backend=auto,amp jagged_restart_steps
        liger_glu_activation liger_kernel_config liger_layer_norm liger_rms_norm liger_rope
        lisa_activated_layers=0 model_init_kwargs model_quantization_config mp_parameters no_cuda
        optim_target_modules pad_to_multiple_of=auto padding_free parallelism_config
        pretrain_multipack_attn=true skip_memory_metrics=true sortish_sampler split_batches
        torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps torchdynamo
        tpu_num_cores train_sampling_strategy=random,sequential use_cpu use_dora use_ipex
        use_kernels use_mps_device use_v1_kernels
        """,
    ),
    Arguments(
        "llama-factory",
        Effect.COST,
        "time or memory",
        """
        adapter_name_or_path add_special_tokens add_tokens block_diag_attn compute_accuracy
        enable_torch_profiler fp8 freeze_language_model new_special_tokens_config resize_vocab
        shift_attn upcast_layernorm upcast_lmhead_output use_adam_mini use_apollo use_asft_loss
        use_badam use_dft_loss use_eaft_loss use_galore use_muon use_unsloth use_unsloth_gc
        """,
    ),
    Arguments(
        "axolotl",
        Effect.COST,
        "time or memory",
        """
        added_tokens_overrides batch_flattening chunked_cross_entropy deepcompile diffusion
        dsv4_bf16_all dsv4_fp4_grouped_mode dsv4_fp8_lora_kernel dsv4_fp8_nonexpert_mode
        dsv4_shared_mlp_lora_kernel eager_attention embeddings_skip_upcast expert_backend
        expert_parallel_backend=deep_ep expert_parallel_token_capacity flash_attn_d512
        flex_attn_compile_kwargs fp32_norms fp8 gemma4_fp8_nonexpert gemma4_hybrid_attn_impl
        gemma4_nf4_nonexpert gptq gpu_memory_limit heads_k_stride=1 kd_trainer large_head_attention
        layer_offloading liger_cross_entropy liger_rms_norm_gated liger_swiglu lisa_n_layers
        llama4_linearized_experts llmcompressor lora_embedding_kernel lora_mlp_kernel
        lora_model_dir lora_o_kernel lora_on_cpu lora_qkv_kernel lora_rank_pattern max_memory
        max_packed_sequence_len model_config model_kwargs moe_bnb_fast moe_dequant_chunk_size
        moe_grouped_backend nonexpert_quantization num_labels nvfp4_merge_aware
        overrides_of_model_kwargs peft peft_autocast_adapter_dtype peft_layers_pattern
        peft_layers_to_transform peft_trainable_token_indices peft_use_dora plugins qat
        quantize_moe_experts relora relora_cpu_offload relora_steps resize_token_embeddings_to_32x
        ring_attn_func s2_attention sage_attention sdpa_varlen selective_checkpointing
        shrink_embeddings spectrum_top_fraction tiled_mlp torchdistx_path trainer_cls
        unfrozen_parameters unsloth_cross_entropy_loss unsloth_lora_mlp unsloth_lora_o
        unsloth_lora_qkv unsloth_rms_norm unsloth_rope use_dsv4_kernels use_glm_dsa_kernels
        use_pose use_scattermoe use_sonicmoe
        """,
    ),
    Arguments(
        "ms-swift",
        Effect.COST,
        "time or memory",
        """
        adapters additional_trainable_parameters device_groups device_max_memory dtype=auto,bf16
        enable_dft_loss experts_impl freeze_llm freeze_parameters freeze_parameters_ratio=0,0.0
        freeze_parameters_regex fsdp_num=1 gpu_memory_fraction lora_bias=none lora_dtype
        lora_lr_ratio loss_type max_memory neftune_backend new_special_tokens num_labels pp=1
        resume_from_adapter sequence_parallel test_oom_error tp=1 train_backend=transformers
        trainable_parameters trainable_parameters_regex tuner_backend=peft use_flash_attn=true
        use_galore use_logits_to_keep use_swift_lora zero_hpz_partition_size
        """,
    ),
    Arguments(
        TRAINERS,
        Effect.NONE,
        "hyperparameters, seeds and losses of the same cost",
        """
        adam_beta1 adam_beta2 adam_epsilon asft_alpha average_tokens_across_devices
        cosine_constant_lr_ratio cosine_min_lr_ratio data_seed eaft_alpha eaft_k
        early_stopping_patience eta_min label_smoothing_factor learning_rate lora_alpha
        lora_fan_in_fan_out lora_task_type loraplus_lr_embedding loraplus_lr_ratio loss_type
        loss_watchdog_patience loss_watchdog_threshold lr_scheduler lr_scheduler_kwargs
        lr_scheduler_type neftune_noise_alpha optim_args peft.loftq_config pissa_convert pissa_init
        pissa_iter router_aux_loss_coef seed use_rslora warmup_ratio warmup_steps weight_decay
        """,
    ),
    Arguments(
        TRAINERS,
        Effect.NONE,
        "data",
        """
        assistant_only_loss chat_template chat_template_path completion_only_loss conv_template
        curriculum_sampling data_length data_path dataloader_* dataset dataset_* datasets
        dispatch_batches eos_token eot_tokens eval_packing ignore_data_skip image_aspect_ratio
        label_names lazy_preprocess length_column_name max_samples mem_cap meta_path
        mm_use_im_patch_token mm_use_im_start_end mm_vision_select_layer overwrite_cache
        packing_strategy pad_token preprocessing_num_workers pretrain_mm_mlp_adapter
        pretraining_dataset remove_unused_columns shuffle_dataset shuffle_merged_datasets
        special_tokens split_dataset_ratio streaming_multipack_buffer_size system template
        test_datasets tokenized_path tokenizer_type tokenizer_use_mistral_common tokens
        train_on_inputs truncation_mode use_fast_tokenizer val_set_size val_size version
        """,
    ),
    Arguments(
        TRAINERS,
        Effect.NONE,
        "logs, checkpoints, evaluation and the length of the run",
        """
        auto_resume_from_checkpoints batch_eval_metrics bf16_full_eval debug disable_tqdm
        do_causal_lm_eval do_eval do_predict do_train enable_jit_checkpoint eval_* evals_per_epoch
        evaluation_strategy fp16_full_eval generation_* greater_is_better hub_* include_for_metrics
        include_inputs_for_metrics include_num_input_tokens_seen include_tokens_per_second
        jit_mode_eval load_best_model_at_end log_* logging_* max_steps metric_for_best_model
        model_author model_name model_revision num_epochs num_train_epochs otel_metrics_host
        otel_metrics_port output_dir overwrite_output_dir past_index per_device_eval_batch_size
        per_gpu_eval_batch_size placement_strategy plot_loss predict_with_generate
        prediction_loss_only project push_to_hub push_to_hub_* ray_run_name ray_scope report_to
        resources_per_worker restore_callback_states_from_checkpoint resume_from_checkpoint
        run_name save_* saves_per_epoch swanlab_* test_value tpu_metrics_debug trackio_*
        use_legacy_prediction_loop use_otel_metrics use_ray use_swanlab use_wandb wandb_*
        """,
    ),
    Arguments(
        TRAINERS,
        Effect.NONE,
        "set-up of processes and loading",
        """
        accelerator_config base_model_ignore_patterns cls_model_config ddp_broadcast_buffers
        ddp_find_unused_parameters ddp_static_graph ddp_timeout device_map
        experimental_skip_move_to_device fsdp_config.auto_wrap_policy
        fsdp_config.cpu_ram_efficient_loading fsdp_config.final_state_dict_type
        fsdp_config.fsdp_auto_wrap_policy fsdp_config.fsdp_cpu_ram_efficient_loading
        fsdp_config.fsdp_final_state_dict_type fsdp_config.fsdp_state_dict_type
        fsdp_config.fsdp_sync_module_states fsdp_config.fsdp_transformer_layer_cls_to_wrap
        fsdp_config.fsdp_use_orig_params fsdp_config.state_dict_type fsdp_config.sync_module_states
        fsdp_config.transformer_layer_cls_to_wrap fsdp_config.use_orig_params
        fsdp_transformer_layer_cls_to_wrap fsdp_version gradient_checkpointing_kwargs
        gradient_checkpointing_use_reentrant ignore_bias_buffers local_rank model_type strict
        trust_remote_code
        """,
    ),
    Arguments(
        TRAINERS,
        Effect.NONE,
        "the implementation that is modelled",
        """
        attn_impl attn_implementation bnb_4bit_compute_dtype bnb_4bit_quant_storage
        bnb_4bit_quant_type flash_attention flash_attn flash_optimum fp16_opt_level sdp_attention
        tf32 use_cache xformers_attention
        """,
    ),
    Arguments(
        "llama-factory",
        Effect.NONE,
        "data",
        """
        audio_sampling_rate buffer_size cache_path crop_to_patches data_shared_file_system
        default_system disable_shuffling enable_thinking eval_on_each_dataset
        ignore_pad_token_for_loss image_dir image_do_pan_and_scan interleave_probs mask_history
        media_dir mix_strategy preprocessing_batch_size preserve_thinking reserved_label_len split
        split_special_tokens streaming tool_format train_on_prompt use_audio_in_video
        """,
    ),
    Arguments(
        "llama-factory",
        Effect.NONE,
        "logs, checkpoints, evaluation and the length of the run",
        """
        adapter_folder cache_dir do_sample early_stopping_steps export_* hf_hub_token
        include_effective_tokens_per_second length_penalty max_length max_new_tokens ms_hub_token
        num_beams om_hub_token print_param_status profile_modules profiler_* repetition_penalty
        skip_special_tokens temperature top_k top_p
        """,
    ),
    Arguments(
        "llama-factory",
        Effect.NONE,
        "set-up of processes and loading",
        """
        compute_dtype infer_* init_special_tokens low_cpu_mem_usage master_addr master_port
        model_max_length moe_aux_loss_coef offload_folder quantization_device_map quantization_type
        ray_init_kwargs ray_storage_* rope_scaling sglang_* train_from_scratch use_kv_cache
        use_reentrant_gc vllm_*
        """,
    ),
    Arguments(
        "llama-factory",
        Effect.NONE,
        "what has an effect only with other arguments",
        """
        apollo_* badam_* create_new_adapter dpo_* freeze_extra_modules freeze_trainable_layers
        freeze_trainable_modules galore_* hyper_parallel_args kt_* kto_* ld_alpha module_dropout
        name_module_trainable num_layer_trainable oft_* orpo_beta ppo_* pref_* ref_model
        ref_model_* reward_model reward_model_* simpo_gamma
        """,
    ),
    Arguments(
        "axolotl",
        Effect.NONE,
        "hyperparameters, seeds and losses of the same cost",
        """
        adam_beta3 adam_epsilon2 embedding_lr embedding_lr_scale grokfast_* lora_alpha_pattern
        lr_div_factor lr_groups lr_quadratic_warmup mean_resizing_embeddings noisy_embedding_alpha
        overrides_of_model_config.rope_scaling peft_ensure_weight_tying peft_init_lora_weights
        peft_use_rslora reinit_weights rope_scaling scaling_softmax scaling_softmax_* use_eaft
        """,
    ),
    Arguments(
        "axolotl",
        Effect.NONE,
        "data",
        """
        axolotl_config_path chat_template_jinja chat_template_kwargs default_system_message
        excess_length_strategy fix_untrained_tokens image_resize_algorithm is_preprocess
        max_prompt_len min_sample_len multipack_real_batches num_dataset_shards_to_save
        pad_to_sequence_len pose_* preprocess_iterable pretrain_multipack_buffer_size
        pretraining_sample_concatenation processor_kwargs push_dataset_to_hub role_boundaries
        sample_packing_* shuffle_before_merging_datasets skip_prepare_dataset streaming
        tokenizer_config tokenizer_legacy tokenizer_save_jinja_files tokenizer_use_fast
        total_num_tokens total_supervised_tokens
        """,
    ),
    Arguments(
        "axolotl",
        Effect.NONE,
        "logs, checkpoints, evaluation and the length of the run",
        """
        bench_dataset bench_split comet_* do_bench_eval dynamic_checkpoint
        fsdp_final_state_dict_type generate_samples gradio_* hf_mlflow_log_artifacts
        hf_use_auth_token include_tkps lm_eval_* merge_lora merge_method mlflow_*
        num_generation_samples profiler_steps profiler_steps_start quantization revision_of_model
        save_first_step use_comet use_mlflow use_tensorboard use_trackio
        """,
    ),
    Arguments(
        "axolotl",
        Effect.NONE,
        "set-up of processes and loading",
        """
        base_model_config bfloat16 bnb_config_kwargs ddp device float16 float32 gc_collect_steps
        gc_steps is_falcon_derived_model is_llama_derived_model is_mistral_derived_model
        is_qwen_derived_model low_cpu_mem_usage qlora_sharded_model_loading type_of_model
        world_size
        """,
    ),
    Arguments(
        "axolotl",
        Effect.NONE,
        "what has an effect only with other arguments",
        """
        api_key backend base_url center_rewards_coefficient chunked_cross_entropy_num_chunks
        cpo_alpha dion_* dpo_* eps expert_parallel_fallback_on_unsupported
        expert_parallel_num_nvl_bytes expert_parallel_num_rdma_bytes fp32_norm_classes
        future_timeout importance_weighting jagged_restart_* kd_* kto_* liger_use_token_scaling
        lisa_* lora_rank loss_fn loss_fn_config mask_token_id mask_token_str max_mask_ratio
        max_sample_tokens min_mask_ratio model_quantization_config_kwargs mora mora_type nemo_gym_*
        noise_schedule num_diffusion_steps num_samples nvfp4_merge_aware_start_step orpo_alpha
        pipeline precompute_ref_log_probs project_id qgalore_* recipe relora_* reward_funcs rl_beta
        rpo_alpha sample_temperature save_compressed simpo_gamma spectrum_model_name tiled_mlp_*
        torch_compile_options train_attn train_mlp train_unembed trl vllm
        """,
    ),
    Arguments(
        "ms-swift",
        Effect.NONE,
        "data",
        """
        add_non_thinking_prefix agent_template cached_dataset cached_val_dataset channels
        check_dataset_strategy columns custom_dataset_info custom_register_path
        custom_train_dataset_path custom_val_dataset_path disable_auto_column_mapping
        disable_ignore_empty_think download_mode enable_thinking external_plugins interleave_prob
        is_binary_loss_scale is_encoder_decoder lazy_tokenize load_dataset_config
        load_from_cache_file loss_scale loss_scale_config_path max_model_len norm_bbox
        packing_cache packing_num_proc padding_side preprocess_num_proc preserve_thinking
        response_prefix self_cognition_sample shuffle_buffer_size stopping_strategy streaming
        streaming_buffer_size streaming_val_size template_backend template_type tools_prompt
        train_dataloader_shuffle train_dataset_mix_ds train_dataset_mix_ratio train_dataset_sample
        train_sampler_random truncation_strategy use_chat_template use_loss_scale val_dataset
        val_dataset_sample val_dataset_shuffle
        """,
    ),
    Arguments(
        "ms-swift",
        Effect.NONE,
        "logs, checkpoints, evaluation and the length of the run",
        """
        add_output_dir_suffix add_version additional_saved_files callbacks check_model
        check_model_is_latest ckpt_dir create_checkpoint_symlink do_sample
        ds3_gather_for_generation early_stop_interval enable_channel_loss extra_eval_args host lang
        logprobs max_epochs max_new_tokens max_shard_size metric metric_warmup_step model_cache_dir
        num_beams only_save_model port push_hub_strategy repetition_penalty resume_only_model
        rome_request_file safe_serialization share stop_words stream structured_outputs_regex
        temperature top_k top_logprobs top_p use_flash_ckpt
        """,
    ),
    Arguments(
        "ms-swift",
        Effect.NONE,
        "set-up of processes and loading",
        """
        acc_strategy bnb_4bit_comp_dtype device_map_config device_map_config_path
        enable_npu_model_patch ignore_args_error init_lora_weights init_strategy init_weights
        load_args load_data_args local_repo_path lorap_lr_ratio loss_name min_lr model_kwargs
        model_layer_cls_name neftune_alpha ray_exp_name rope_scaling router_aux_loss_coef use_hf
        """,
    ),
    Arguments(
        "ms-swift",
        Effect.NONE,
        "what has an effect only with other arguments",
        """
        adalora_* adapter_act adapter_length boft_* fourier_* galore_* hqq_axis
        hqq_dynamic_config_path ia3_* lisa_step_interval llamapro_* lora_ga_* lora_int_id
        lora_local_path lora_modules lora_name mrl_dims problem_type reft_* vera_*
        """,
    ),
    Arguments(
        "megatron-swift",
        Effect.COST,
        "time or memory",
        """
        align_grad_reduce=true align_param_gather=true batch_p2p_comm bias_activation_fusion=true
        bias_dropout_fusion=true calculate_per_token_loss cp_partition_mode=zigzag
        cross_entropy_fusion_impl=native csa_dense_mode data_sharding fp4_param_gather
        masked_softmax_fusion=true mcore_adapter megatron_extra_kwargs mhc_recompute_layer_num
        microbatch_group_size_per_vp_stage mlp_padding_free moe_enable_deepep moe_grouped_gemm=true
        mtp_shared_weights optimizer_cuda_graph overlap_param_gather_with_optimizer_step
        padding_free=true sequence_packing_scheduler
        """,
    ),
    Arguments(
        "megatron-swift",
        Effect.PART,
        OWN_TOWER,
        "vit_attn_impl vit_gradient_checkpointing_kwargs",
    ),
    Arguments(
        "megatron-swift",
        Effect.NONE,
        "hyperparameters, seeds and losses of the same cost",
        """
        accumulate_allreduce_grads_in_fp32 adam_eps apply_query_key_layer_scaling
        apply_wd_to_qk_layernorm attention_softmax_in_fp32 data_parallel_random_init
        dsa_indexer_loss_coeff dsa_indexer_use_sparse_loss end_weight_decay fp4_recipe
        fp8_amax_compute_algo fp8_amax_history_len lr lr_* min_lr moe_aux_loss_coeff
        moe_router_dtype moe_router_load_balancing_type moe_token_drop_policy moe_z_loss_coeff
        mtp_decoder_input_detach mtp_loss_scaling_factor muon_* sgd_momentum start_weight_decay
        te_rng_tracker weight_decay_incr_style
        """,
    ),
    Arguments(
        "megatron-swift",
        Effect.NONE,
        "logs, checkpoints, evaluation and the length of the run",
        """
        async_save bridge_backend dist_ckpt_* distrib_optim_* finetune manual_gc manual_gc_*
        mcore_model merge_lora no_load_optim no_load_rng no_save_optim no_save_rng
        perform_initialization skip_megatron_init tensorboard_* train_iters use_cpu_initialization
        use_persistent_ckpt_worker
        """,
    ),
    Arguments(
        "megatron-swift",
        Effect.NONE,
        "the implementation that is modelled, or what has an effect only with other arguments",
        """
        advantage_estimator apply_dsa_kernel_fusion apply_rope_fusion async_generate beta bf16
        calculate_KL center_rewards_coefficient completion_length_limit_scope cosine_* delta
        desirable_weight dynamic_sample epsilon epsilon_high f_divergence_type fipo_*
        generation_batch_size gkd_logits_topk gym_env importance_sampling_level kl_in_reward
        label_smoothing language_model_only lmbda loss_type max_completion_length
        max_resample_times max_turns mcore_ref_adapter mcore_ref_model move_model_batches
        multi_turn_scheduler nccl_comm_warmup num_generations num_generations_eval num_iterations
        off_policy_sequence_mask_delta offload_bridge offload_model offload_optimizer
        offload_teacher_model overlong_filter real_tau ref_adapters ref_model ref_model_*
        reference_free repetition_* reward_* rollout_* router_replay_mode rpo_alpha scale_rewards
        seq_kd sft_alpha sleep_level soft_cache_length soft_max_length steps_per_generation
        sync_ref_model tau_neg tau_pos teacher_* top_entropy_quantile undesirable_weight
        use_fused_mhc use_gym_env use_vllm vllm_*
        """,
    ),
)
"""Every argument that no row reads, by its effect."""


OWN = {"megatron-swift": ("ms-swift", "megatron-swift")}
"""Programs whose arguments a program has, where those are not its own alone."""


def other_arguments(program: str) -> Table:
    """The rows of a program; its own win over those of all programs."""
    rows: dict[str, Entry] = {}
    for programs in (TRAINERS, *OWN.get(program, (program,))):
        for one in (one for one in ARGUMENTS if one.programs == programs):
            makes_none = one.effect is Effect.NONE
            found = neutral(one.what, one.keys) if makes_none else group(*one[1:])
            rows |= {row.key: row for row in found}
    return tuple(rows.values())
