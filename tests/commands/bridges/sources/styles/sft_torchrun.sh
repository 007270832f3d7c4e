set -x
if [ "$#" -lt 2 ]; then
    echo "usage: sft_torchrun.sh PROCESSES PLACE [overrides]"
    exit 1
fi
processes=$1
place=$2
shift 2
torchrun --standalone --nnodes=1 --nproc_per_node=$processes \
    -m verl.trainer.fsdp_sft_trainer \
    data.train_files=$HOME/data/sums/train.parquet \
    data.val_files=$HOME/data/sums/test.parquet \
    data.prompt_key=extra_info data.response_key=extra_info \
    +data.prompt_dict_keys=['question'] +data.response_dict_keys=['answer'] \
    data.micro_batch_size=4 \
    optim.lr=1e-4 \
    model.partial_pretrain=/models/half \
    trainer.default_local_dir=$place \
    trainer.logger=console trainer.total_epochs=2 $@ \
    use_remove_padding=true
