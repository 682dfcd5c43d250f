"""Arguments of programs on Hugging Face's Trainer that change neither the model nor a step."""

NEUTRAL = {
    "hyperparameters, seeds and losses of the same cost": """
    adam_beta1 adam_beta2 adam_epsilon asft_alpha cosine_constant_lr_ratio cosine_min_lr_ratio
    data_seed eaft_alpha eaft_k early_stopping_patience eta_min label_smoothing_factor
    learning_rate lora_alpha lora_dropout lora_fan_in_fan_out loraplus_lr_ratio
    loss_watchdog_patience loss_watchdog_threshold lr_scheduler lr_scheduler_kwargs
    lr_scheduler_type neftune_noise_alpha peft.loftq_config pissa_convert pissa_init pissa_iter
    seed use_rslora warmup_ratio warmup_steps weight_decay
    """,
    "data": """
    chat_template conv_template curriculum_sampling data_length data_path dataloader_num_workers
    dataloader_pin_memory dataloader_prefetch_factor dataset dataset_config dataset_config_name
    dataset_dir dataset_exact_deduplication dataset_kwargs dataset_mixer dataset_mixture
    dataset_name dataset_num_proc dataset_prepared_path dataset_processes dataset_splits
    dataset_test_split dataset_train_split datasets eos_token eot_tokens image_aspect_ratio
    lazy_preprocess max_samples mem_cap meta_path mm_use_im_patch_token mm_use_im_start_end
    mm_vision_select_layer overwrite_cache
    preprocessing_num_workers pretrain_mm_mlp_adapter pretraining_dataset remove_unused_columns
    shuffle_merged_datasets special_tokens split_dataset_ratio streaming_multipack_buffer_size
    system template test_datasets tokenized_path tokenizer_type tokenizer_use_mistral_common
    tokens train_on_inputs use_fast_tokenizer val_set_size val_size version
    """,
    "logs, checkpoints, evaluation and the length of the run": """
    auto_resume_from_checkpoints debug do_causal_lm_eval do_eval eval_batch_size
    eval_causal_lm_metrics eval_max_new_tokens eval_sample_packing eval_steps eval_strategy
    eval_table_max_new_tokens eval_table_size evals_per_epoch evaluation_strategy hub_always_push
    hub_model_id hub_strategy log_level logging_first_step logging_steps logging_strategy
    max_steps model_author model_name model_revision num_epochs num_train_epochs otel_metrics_host
    otel_metrics_port output_dir overwrite_output_dir per_device_eval_batch_size
    placement_strategy plot_loss push_to_hub ray_run_name report_to resources_per_worker
    resume_from_checkpoint run_name save_only_model save_safetensors save_steps save_strategy
    save_total_limit saves_per_epoch swanlab_description swanlab_experiment_name
    swanlab_log_completions swanlab_mode swanlab_project test_value use_otel_metrics use_ray
    use_swanlab use_wandb wandb_entity wandb_log_model wandb_name wandb_project wandb_run_id
    wandb_watch
    """,
    "set-up of processes and loading": """
    base_model_ignore_patterns cls_model_config ddp_find_unused_parameters ddp_timeout device_map
    experimental_skip_move_to_device fsdp_config.auto_wrap_policy
    fsdp_config.cpu_ram_efficient_loading fsdp_config.fsdp_auto_wrap_policy
    fsdp_config.fsdp_cpu_ram_efficient_loading fsdp_config.fsdp_state_dict_type
    fsdp_config.fsdp_sync_module_states fsdp_config.fsdp_transformer_layer_cls_to_wrap
    fsdp_config.fsdp_use_orig_params fsdp_config.state_dict_type
    fsdp_config.transformer_layer_cls_to_wrap fsdp_transformer_layer_cls_to_wrap fsdp_version
    gradient_checkpointing_kwargs model_type strict trust_remote_code
    """,
    "the implementation that is modelled": """
    attn_impl attn_implementation flash_attention flash_attn flash_optimum sdp_attention tf32
    xformers_attention
    """,
}
"""Keys, or key=value where that value alone is neutral, by what they set."""
