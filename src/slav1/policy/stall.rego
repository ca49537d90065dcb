# A job that stands still because its device memory is in pieces: the example of the
# published contract, as it is given there. What it grants is `policy.grant`.
package training.autoscale

default allow := false

allow if {
  input.metrics.gpu_fragmentation_rate > 65.0
  input.metrics.step_stall_seconds > 30
  input.metadata.job_type == "distributed_finetune"
}
