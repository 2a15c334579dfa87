"""TensorFlow: the core in eager mode and in `tf.function`; ragged tensors as packed sequences."""
