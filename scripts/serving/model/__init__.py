# SPDX-License-Identifier: Apache-2.0
"""A model folder: config, code, tokenizer, and every tensor by name and shape, from headers alone."""
