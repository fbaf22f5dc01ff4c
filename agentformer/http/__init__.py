"""What every adapter of a remote provider needs: addresses without secrets, requests with limits, a breaker, counts."""
