"""Everything there is behind the proxy: tools, rules, references, resources, prompts."""
