"""What a user deploys: the source of an AWS Lambda function and of a functions-framework target."""

from rollart_flow.serverless import http_target, lambda_handler
from tests.rewards import functions

handler = lambda_handler(functions.with_parts)
target = http_target(functions.with_parts)
failing_target = http_target(functions.raises)
