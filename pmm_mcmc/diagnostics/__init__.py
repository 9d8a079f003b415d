"""What a result says about itself: corrected estimates, bias with a standard error, a verdict."""
